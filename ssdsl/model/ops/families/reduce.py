"""The rows of reductions: sums of parts add up, a kernel merges maxima of parts, others need all that they reduce."""

from collections.abc import Iterator

from ssdsl.model.dims.signature import ONE, Axis, Signature, axes, combined, kept_whole, signature
from ssdsl.model.ops.op import Op, PartKernel, call_of
from ssdsl.model.ops.reader import TypedCall

UNMERGED = ("bool", "uint8", "complex64", "complex128")  # dtypes that cannot be negated, or have no order


def reduce_sum(call: TypedCall) -> Signature:
    names, _, out = _reduced(call)
    return signature([names], [out])


def reduce_whole(call: TypedCall) -> Signature:
    """A reduction whose parts cannot be merged: the axes that it reduces are whole."""
    names, gone, out = _reduced(call)
    given = [kept_whole(n) if i in gone else n for i, n in enumerate(names)]
    return signature([given], [out] * len(call.outputs))


def reduce_merged(call: TypedCall) -> Signature:
    """A reduction whose parts a kernel merges; an `argmax` over all axes together needs them whole."""
    names, gone, out = _reduced(call)
    places = call.call.kind in ("argmax", "argmin") and call.argument("dim") is None
    if places or call.inputs[0].dtype in UNMERGED:
        return reduce_whole(call)
    given = [combined(n[0].name) if i in gone else n for i, n in enumerate(names)]
    return signature([given], [out] * len(call.outputs))


def _reduced(call: TypedCall) -> tuple[list[Axis], set[int], list[Axis]]:
    """The input's axes, the numbers of those that are reduced, and the output's axes."""
    rank, dims, keep = call.rank, call.argument("dim"), bool(call.argument("keepdim"))
    dims = range(rank) if dims is None or dims == () else (dims if isinstance(dims, tuple) else (dims,))
    gone = {int(d) % max(1, rank) for d in dims}
    names = axes(rank)
    return names, gone, [ONE if i in gone else n for i, n in enumerate(names) if keep or i not in gone]


WHOLE = "prod any all var std var_mean std_mean linalg_vector_norm norm median nansum count_nonzero".split()


def _op(kind: str, function: str, words: str) -> Op:
    """The row of a reduction whose parts a function merges."""
    return Op(f"aten::{kind}", reduce_merged, kernel=PartKernel(("self", "dim"), call_of(function, words)))


def _extremes(kind: str) -> Iterator[Op]:
    """The rows of maxima or minima; those with indices are told where their part begins."""
    yield _op(f"a{kind}", f"a{kind}_parts", "self | dim keepdim group")
    yield _op(kind, f"a{kind}_parts", "self | dim=() keepdim=False group")
    yield _op(f"{kind}.dim", f"{kind}_parts", "self | dim keepdim start group")
    yield _op(f"arg{kind}", f"arg{kind}_parts", "self dim | keepdim start group")


OPS = (
    Op("aten::sum", reduce_sum, linear_in=("self",), text=".sum"),
    *(Op(f"aten::{kind}", reduce_whole) for kind in WHOLE),
    _op("logsumexp", "logsumexp_parts", "self | dim keepdim group"),
    *_extremes("max"),
    *_extremes("min"),
)
