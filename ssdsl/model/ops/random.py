"""Operators that draw random numbers, which torch tags; rows stand for those that the tag does not say enough of.

A plan with such an operator can be shown and simulated, not run: its parts would draw other numbers.
"""

from ssdsl.model.ops.elementwise import elementwise
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.signature import Misfit, Signature


def noise(call: TypedCall) -> Signature | None:
    """One number for each element of an operand, as dropout draws them; None for numbers of a shape of its own."""
    try:
        return elementwise(call) if call.inputs else None
    except Misfit:
        return None


OPS = (
    Op("aten::rand_like", elementwise, stops_gradient=True),
    Op("aten::randn_like", elementwise, stops_gradient=True),
)
