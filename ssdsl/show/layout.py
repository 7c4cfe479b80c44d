"""What an operator makes on a device, as a plan cuts it: `[batch/dp/m 2, seq 64, ffn/tp 512]`."""

from math import prod

from ssdsl.model.graph import Operand, Operator
from ssdsl.plan.paths import starred
from ssdsl.plan.plan import OpPlan
from ssdsl.text.layouts import LayoutAxis, layout_words


def result_text(operator: Operator, record: OpPlan) -> str:
    """The first result of an operator with these indices, before any communication. A dimension that no result carries
    is summed over, unless the operator combines its parts itself."""
    if not operator.outputs:
        return ""
    axes = [_axis(operator, record, dims) for dims in operator.outputs[0].axes]
    return layout_words(axes, [i.name for i in record.indices if _is_summed(operator, i.dim)])


def _axis(operator: Operator, record: OpPlan, dims: tuple[int, ...]) -> LayoutAxis:
    cuts = {dim: tuple(i.name for i in record.indices if dim in i.dims) for dim in dims}
    names = tuple((starred(operator.dims[dim].name), cuts[dim]) for dim in dims)
    parts = prod(i.devices for i in record.indices if any(dim in i.dims for dim in dims))
    return LayoutAxis(names, -(-prod(operator.dims[dim].size for dim in dims) // parts))


def _is_summed(operator: Operator, dim: int) -> bool:
    def carries(operand: Operand) -> bool:
        return operand.carries(dim)

    return not operator.dims[dim].combined and not any(map(carries, operator.outputs))
