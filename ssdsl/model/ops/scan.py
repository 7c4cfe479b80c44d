"""What works along some axes: these are whole, and go on behind it, unless their size changes.

Of running sums, and of the largest elements, a kernel merges the parts.
"""

from collections.abc import Callable

from ssdsl.model.graph import Operator
from ssdsl.model.ops.op import Collective, Op, PartKernel, Rule, SavedRule
from ssdsl.model.ops.reader import argument
from ssdsl.model.ops.saved_by_kernels import cumprod_part_saves, topk_part_saves
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.ops.whole import behind
from ssdsl.model.signature import Signature, axes, combined, signature, whole, whole_axes


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


def running(call: TypedCall) -> Signature:
    """What each element makes of itself and of those before it: a part needs what all before it come to."""
    names, at = axes(call.rank), call.axis("dim")
    if not names:
        return along(lambda call: call.argument("dim"))(call) or signature([], [])
    names[at] = combined(names[at][0].name)
    return signature([names], [names])


def largest(call: TypedCall) -> Signature:
    """Some elements of an axis: those of all parts are among those of each."""
    names, at = axes(call.rank), int(call.argument("dim")) % max(1, call.rank)
    if not names or call.inputs[0].dtype in ("bool", "uint8"):
        return along(lambda call: call.argument("dim"))(call) or signature([], [])
    given, found = list(names), list(names)
    given[at], found[at] = combined(names[at][0].name), whole("found")
    return signature([given], [found] * len(call.outputs))


ALONG_DIM = "cummax cummin sort argsort slice".split()


def _of_each(operator: Operator, parts: int) -> tuple[Collective, ...]:
    """A number from each part, for all to know."""
    return (Collective(parts, width=4),)


def _running_parts(kind: str, saved: SavedRule, *arguments: str) -> PartKernel:
    """Each part learns what all have come to, and in backward what all have made of what it has come to."""
    call = f"{kind}_parts({', '.join(['{self}', '{dim}', '{part}', '{group}', *arguments])})"
    return PartKernel(axis=("self", "dim"), call=call, forward=_of_each, backward=_of_each, saved=saved)


def _candidates(operator: Operator, parts: int) -> tuple[Collective, ...]:
    """As many elements of each part as are asked for, and their places."""
    count = parts * argument(operator, "k")
    return Collective(count), Collective(count, width=8)


TOPK_PARTS = PartKernel(
    axis=("self", "dim"),
    call="topk_parts({self}, {k}, {dim}, {largest}, {start}, {part}, {group})",
    forward=_candidates,
    backward=(),  # a part takes the gradients of what it has found
    saved=topk_part_saves,
)


def histc(call: TypedCall) -> Signature:
    """How many elements lie in each of some equal intervals: of parts these add up, if the bounds are given."""
    if call.argument("min") == call.argument("max"):
        return signature([whole_axes(call.rank, "a")], [[whole("bins")]])
    return signature([axes(call.rank)], [[whole("bins")]])


OPS = (
    Op("aten::histc", histc, stops_gradient=True),
    Op("aten::cumsum", running, kernel=_running_parts("cumsum", "", "{dtype}")),
    Op("aten::cumprod", running, kernel=_running_parts("cumprod", cumprod_part_saves, "{dtype}")),
    Op("aten::logcumsumexp", running, kernel=_running_parts("logcumsumexp", cumprod_part_saves)),
    Op("aten::topk", largest, kernel=TOPK_PARTS),
    *(Op(f"aten::{kind}", along(lambda call: call.argument("dim"))) for kind in ALONG_DIM),
    Op("aten::flip", along(lambda call: call.argument("dims"))),
    Op("aten::roll", along(_rolled), text=".roll"),
    *(Op(f"aten::{kind}", along(lambda call: (-2, -1))) for kind in ("tril", "triu")),
)
