"""What a plan says of an operator that runs beside another one: all that it says of that one."""

from dataclasses import replace

from ssdsl.model.graph import Operator
from ssdsl.plan.plan import NOTHING, OpPlan


def beside(
    host: Operator, record: OpPlan, operator: Operator, own: OpPlan = NOTHING, *, combines: bool = True
) -> OpPlan:
    """The record of an operator that is put beside a host with this record.

    It is cut as the host is along the dimensions that both have; unless it `combines`, not along those that only a
    kernel combines. What is said of it alone (`own`) holds.
    """
    indices = list(own.indices)
    for index in record.indices:
        cls = host.dims[index.dim].cls
        dims = (k for k, d in enumerate(operator.dims) if d.cls == cls and not d.fixed and (combines or not d.combined))
        at = next(dims, None)
        if at is not None and all(i.name != index.name for i in indices):
            indices.append(replace(index, dim=at, also=None))
    return OpPlan(
        place=record.place,
        indices=tuple(indices),
        whole=own.whole,
        checkpoint=own.checkpoint or record.checkpoint,
        regathers=own.regathers or record.regathers,
        ahead=own.ahead or record.ahead,
        sets=own.sets | record.sets,
    )
