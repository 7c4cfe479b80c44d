"""The plan's record of an operator that runs beside another one: everything that the plan says of the other."""

from dataclasses import replace

from ssdsl.model.graph import Operator
from ssdsl.plan.plan import NOTHING, OpPlan


def beside(
    host: Operator, record: OpPlan, operator: Operator, own: OpPlan = NOTHING, *, combines: bool = True
) -> OpPlan:
    """The record (`OpPlan`) of an operator that is put beside `host`; `record` is the host's.

    It is cut as the host is, along the dimensions that both have. Dimensions that only a kernel can combine are left
    whole unless `combines`. Facts of the operator itself (`own`) come first.
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
