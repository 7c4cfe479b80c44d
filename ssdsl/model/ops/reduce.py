"""Reductions: a sum adds up from its parts, the others need all of what they reduce."""

from ssdsl.model.ops.op import Op
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.signature import ONE, Axis, Signature, axes, kept_whole, signature


def reduce_sum(call: TypedCall) -> Signature:
    names, _, out = _reduced(call)
    return signature([names], [out])


def reduce_whole(call: TypedCall) -> Signature:
    """A reduction that is no sum needs all of the axes it reduces."""
    names, gone, out = _reduced(call)
    given = [kept_whole(n) if i in gone else n for i, n in enumerate(names)]
    return signature([given], [out] * len(call.outputs))


def _reduced(call: TypedCall) -> tuple[list[Axis], set[int], list[Axis]]:
    """The input's axes, which of them vanish, and the output's axes."""
    rank, dims, keep = call.rank, call.argument("dim"), bool(call.argument("keepdim"))
    dims = range(rank) if dims is None or dims == () else (dims if isinstance(dims, tuple) else (dims,))
    gone = {int(d) % max(1, rank) for d in dims}
    names = axes(rank)
    return names, gone, [ONE if i in gone else n for i, n in enumerate(names) if keep or i not in gone]


WHOLE = """
    amax amin max min argmax argmin prod any all var std var_mean std_mean linalg_vector_norm norm logsumexp median
    nansum count_nonzero
""".split()

OPS = (
    Op("aten::sum", reduce_sum, linear_in=("self",), text=".sum"),
    *(Op(f"aten::{kind}", reduce_whole) for kind in WHOLE),
)
