"""The rows of reductions: sums of parts add up, a kernel merges maxima of parts, others need all that they reduce."""

from ssdsl.model.dims.signature import ONE, Axis, Signature, axes, combined, kept_whole, signature
from ssdsl.model.ops.op import Op, PartKernel
from ssdsl.model.ops.typed_call import TypedCall

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


def _merges(function: str, *arguments: str, place: bool = False) -> PartKernel:
    """The kernel that merges maxima or minima of parts; with `place`, also their indices."""
    begins = ["{start}"] if place else []
    return PartKernel(("self", "dim"), f"{function}({', '.join(['{self}', *arguments, *begins, '{group}'])})")


ALONG = ("{dim}", "{keepdim}")
LOGSUMEXP_PARTS = PartKernel(("self", "dim"), "logsumexp_parts({self}, {dim}, {keepdim}, {group})")

OPS = (
    Op("aten::sum", reduce_sum, linear_in=("self",), text=".sum"),
    *(Op(f"aten::{kind}", reduce_whole) for kind in WHOLE),
    Op("aten::logsumexp", reduce_merged, kernel=LOGSUMEXP_PARTS),
    *(Op(f"aten::a{kind}", reduce_merged, kernel=_merges(f"a{kind}_parts", *ALONG)) for kind in ("max", "min")),
    *(Op(f"aten::{kind}", reduce_merged, kernel=_merges(f"a{kind}_parts", "()", "False")) for kind in ("max", "min")),
    *(
        Op(f"aten::{kind}.dim", reduce_merged, kernel=_merges(f"{kind}_parts", *ALONG, place=True))
        for kind in ("max", "min")
    ),
    *(
        Op(f"aten::arg{kind}", reduce_merged, kernel=_merges(f"arg{kind}_parts", *ALONG, place=True))
        for kind in ("max", "min")
    ),
)
