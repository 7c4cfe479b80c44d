"""What works along some axes: these are whole. They go on behind it, unless their size changes."""

from collections.abc import Callable

from ssdsl.model.ops.op import Op, Rule
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.ops.whole import behind
from ssdsl.model.signature import Signature, axes, signature, whole, whole_axes


def along(dims_of: Callable[[TypedCall], object]) -> Rule:
    """The rule of an operator that works along the axes that `dims_of` finds: a number, several, or None for 0."""

    def rule(call: TypedCall) -> Signature:
        dims = dims_of(call)
        chosen = dims if isinstance(dims, tuple) else (0 if dims is None else dims,)
        along = {int(d) % call.rank for d in chosen}
        given = [whole(a[0].name) if i in along else a for i, a in enumerate(axes(call.rank))]
        return signature([given] * len(call.inputs), [behind(given, call.shape, call.result)] * len(call.outputs))

    return rule


def _rolled(call: TypedCall) -> object:
    """Without axes, the flattened tensor is rolled."""
    return call.argument("dims") or tuple(range(call.rank))


ALONG_DIM = "cumsum cumprod cummax cummin logcumsumexp sort argsort topk slice".split()


def histc(call: TypedCall) -> Signature:
    """How many elements lie in each of some equal intervals: of parts these add up, if the bounds are given."""
    if call.argument("min") == call.argument("max"):
        return signature([whole_axes(call.rank, "a")], [[whole("bins")]])
    return signature([axes(call.rank)], [[whole("bins")]])


OPS = (
    Op("aten::histc", histc, stops_gradient=True),
    *(Op(f"aten::{kind}", along(lambda call: call.argument("dim"))) for kind in ALONG_DIM),
    Op("aten::flip", along(lambda call: call.argument("dims"))),
    Op("aten::roll", along(_rolled), text=".roll"),
    *(Op(f"aten::{kind}", along(lambda call: (-2, -1))) for kind in ("tril", "triu")),
)
