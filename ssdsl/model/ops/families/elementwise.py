"""The rows of elementwise operators. torch tags most of them as pointwise; rows are here for the others, and for those
with further facts."""

from ssdsl.model.dims.signature import ONE, Axis, Misfit, Signature, free, signature
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import Shape, TypedCall


def elementwise(call: TypedCall) -> Signature:
    """Operands broadcast to the axes of the outputs from the right; an axis of size one is not split."""
    out = call.result
    if any(t.shape != out for t in call.outputs):
        raise Misfit("its results differ in shape")
    return signature([broadcast(s, out) for s in call.shapes], [broadcast(out, out)] * len(call.outputs))


def broadcast(shape: Shape, out: Shape) -> list[Axis]:
    """The axes of a tensor that is broadcast to `out`. Raises Misfit if it cannot be."""
    shift = len(out) - len(shape)
    if shift < 0 or any(n not in (1, out[i + shift]) for i, n in enumerate(shape)):
        raise Misfit(f"{list(shape)} does not broadcast to {list(out)}")
    return [ONE if n == 1 and out[i + shift] != 1 else free(f"d{i + shift}") for i, n in enumerate(shape)]


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    """The shape of an elementwise result of two tensors."""
    rank = max(len(a), len(b))
    left, right = ((1,) * (rank - len(s)) + s for s in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


UNTAGGED = "rsub floor_divide hardswish log_sigmoid __and__ __or__ _prelu_kernel leaky_relu".split()  # the last in 2.11
FILLS = "empty_like full_like ones_like zeros_like detach".split()  # no gradient flows to their operand
INFIX = {"pow": "**", "ne": "!=", "eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
FUNCTIONS = {"gelu": "F.gelu", "silu": "F.silu"} | {n: f"torch.{n}" for n in ("tanh", "relu", "exp", "sigmoid")}
METHODS = ("masked_fill",)

OPS = (
    Op("aten::add", elementwise, linear_in=("self other",), text="+"),
    Op("aten::sub", elementwise, linear_in=("self other",), text="-"),
    Op("aten::mul", elementwise, linear_in=("self", "other"), text="*"),
    Op("aten::div", elementwise, linear_in=("self",), text="/"),
    Op("aten::neg", elementwise, linear_in=("self",)),
    Op("aten::_to_copy", elementwise, linear_in=("self",)),
    Op("aten::where", elementwise, linear_in=("self other",)),
    Op("aten::lerp", elementwise, linear_in=("self end",)),
    Op("aten::addcmul", elementwise, linear_in=("self tensor1", "self tensor2")),
    Op("aten::addcdiv", elementwise, linear_in=("self tensor1",)),
    Op("aten::complex", elementwise, linear_in=("real imag",)),
    Op("aten::fill", elementwise),
    Op("aten::zero", elementwise),
    Op("aten::max.other", elementwise),
    Op("aten::min.other", elementwise),
    *(Op(f"aten::{kind}", elementwise, text=sign) for kind, sign in INFIX.items()),
    *(Op(f"aten::{kind}", elementwise, text=name) for kind, name in FUNCTIONS.items()),
    *(Op(f"aten::{kind}", elementwise, text=f".{kind}") for kind in METHODS),
    *(Op(f"aten::{kind}", elementwise, text={"__and__": "&", "__or__": "|"}.get(kind)) for kind in UNTAGGED),
    *(Op(f"aten::{kind}", elementwise, stops_gradient=True) for kind in FILLS),
)
