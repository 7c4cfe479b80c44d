"""The rows of operators on tables: embeddings, indexing, gathering and scattering."""

from collections.abc import Mapping, Sequence

from ssdsl.model.dims.signature import (
    ONE,
    Axis,
    Signature,
    axes,
    combined,
    free,
    kept_whole,
    parse_signature,
    signature,
    whole,
    whole_axes,
    with_axis,
)
from ssdsl.model.ops.families.reduce import UNMERGED
from ssdsl.model.ops.families.whole import all_whole
from ssdsl.model.ops.op import Op, PartKernel, Rule, Text, call_of
from ssdsl.model.ops.reader import AxisOfPart, TypedCall

EXTREMES = ("amax", "amin")


def embedding(call: TypedCall) -> Signature:
    """The vocabulary vanishes, so results of its parts add up. It is whole if gradients depend on words' frequency."""
    return (
        all_whole(call) if call.argument("scale_grad_by_freq") else parse_signature("vocab hidden, ... -> ... hidden")
    )


def index(call: TypedCall) -> Signature:
    """x[i, j, ...]: the indexed axes vanish, those of the index tensors (which broadcast) appear in their place.

    Each index lies in one part of its axis, and the other parts give zero: the parts add up.
    """
    names = axes(call.rank)
    places = [i for i, item in enumerate(call.args[1]) if item is not None]
    rank = len(call.result) - (len(names) - len(places))
    at = places[0] if places[-1] - places[0] == len(places) - 1 else 0  # if others stand between, they come first
    full = call.result[at : at + rank]
    rows = [
        [ONE if n == 1 != full[i + rank - len(s)] else free(f"i{i + rank - len(s)}") for i, n in enumerate(s)]
        for s in call.shapes[1:]
    ]
    kept = [n for i, n in enumerate(names) if i not in places]
    given = [_read(call, n) if i in places else n for i, n in enumerate(names)]
    return signature([given, *rows], [[*kept[:at], *axes(rank, "i"), *kept[at:]]])


def index_select(call: TypedCall) -> Signature:
    names, at = axes(call.rank), call.axis("dim")
    given = with_axis(names, at, _read(call, names[at]))
    return signature([given, [free("i")]], [with_axis(names, at, free("i"))])


def _read(call: TypedCall, axis: Axis) -> Axis:
    """An axis that indices count along: parts of numbers add up, those of truth values do not."""
    return kept_whole(axis) if call.inputs[0].dtype == "bool" else axis


def gather(call: TypedCall) -> Signature:
    """The input and the indices share all axes but the one gathered along; others that differ in size are whole.

    Each index lies in one part of that axis, and the other parts give zero: the parts add up.
    """
    (x, i), at = call.shapes, call.axis("dim")
    alike = [k != at and x[k] == i[k] for k in range(len(x))]
    taken = _row(alike, at, "b", free("i"))
    return signature([_row(alike, at, "a", _read(call, free("along"))), taken], [taken])


def _row(alike: Sequence[bool], at: int, word: str, along: Axis | None = None) -> list[Axis]:
    """The axes of an operand: this one where positions are counted `along`, those in which all operands are alike, and
    others, which are whole and begin with a word."""
    return [
        along if along and k == at else free(f"d{k}") if f and k != at else whole(f"{word}{k}")
        for k, f in enumerate(alike)
    ]


def embedding_bag(call: TypedCall) -> Signature:
    """Sums of bags of words that are laid end to end: only `hidden` may be split. Further results describe the bags."""
    given = [[whole("vocab"), free("hidden")], *([whole(f"i{n}")] for n in range(len(call.inputs) - 1))]
    bags = [whole("bags"), free("hidden")]
    others = [bags if len(t.shape) == 2 else [whole(f"o{n}")] for n, t in enumerate(call.outputs[1:])]
    return signature(given, [bags, *others])


def index_put(call: TypedCall) -> Signature:
    """Writes at indices of axes that stand together; these are whole, and the others may be split."""
    given = call.args[1]
    indexed = [at for at, place in enumerate(given) if place is not None]
    first, last = indexed[0], indexed[-1] + 1
    if last - first != len(indexed) or any(t.dtype == "bool" for t in call.inputs[1:-1]):
        return all_whole(call)
    kept, values, places = axes(call.rank - len(indexed)), call.shapes[-1], call.shapes[1:-1]
    picked = whole_axes(max(map(len, places)), "v")
    written = [*zip(call.shape[:first], kept, strict=False), *((1, axis) for axis in picked)]
    written += zip(call.shape[last:], kept[first:], strict=True)
    added = [
        ONE if n == 1 != m else axis for n, (m, axis) in zip(values, written[len(written) - len(values) :], strict=True)
    ]
    row = [*kept[:first], *whole_axes(len(indexed), "a"), *kept[first:]]
    return signature([row, *([whole(f"i{n}{k}") for k in range(len(s))] for n, s in enumerate(places)), added], [row])


def scatter_add(call: TypedCall) -> Signature:
    """Adds along one axis, at the positions of an index: a part of it takes what falls into it.

    What is added may be cut too, along the axis that the index and it have: it vanishes, so results of its parts add
    up, and what was there before is one more addend. Another axis may be split if it has the same size in all operands.
    """
    (x, index, added), at = call.shapes, call.axis("dim")
    if not x or len(added) != len(x):
        return all_whole(call)
    is_list = len(index) < len(x)
    alike = [added[k] == x[k] and (is_list or index[k] == x[k]) for k in range(len(x))]
    into = _row(alike, at, "a", combined("into"))
    counts = index if is_list else index[at : at + 1]
    points = free("points") if counts == added[at : at + 1] else None
    places = _row(alike, at, "i", points)
    if is_list:
        places = [places[at]] if index else []
    return signature([into, places, _row(alike, at, "s", points)], [into], addends=(0,))


def _scatter(*, selects: bool = False) -> Rule:
    """Writes along one axis, which is whole; another may be split if it has the same size in all operands.

    `selects`: the written tensor may lack the first axis.
    """

    def rule(call: TypedCall) -> Signature:
        shapes, rank, at = call.shapes, call.rank, call.axis("dim")
        alike = [all(s[k] == call.shape[k] for s in shapes if len(s) == rank) for k in range(rank)]
        names = _row(alike, at, "a")
        rows = [names]
        for number, shape in enumerate(shapes[1:]):
            if len(shape) == rank:
                rows.append(_row(alike, at, f"b{number}"))
            elif selects and len(shape) == rank - 1:
                rows.append(with_axis(names, at))
            else:
                rows.append([whole(f"i{number}")] if shape else [])
        return signature(rows, [names])

    return rule


def scatter_reduce(call: TypedCall) -> Signature:
    """Reduces along one axis, at the positions of an index: a part of it takes what falls into it. Of the points that
    are reduced each part finds the largest or smallest, and the kernel merges the parts. Another axis may be split if
    it has the same size in all operands."""
    (x, index, points), at = call.shapes, call.axis("dim")
    if not x or not index or not points:
        return all_whole(call)
    alike = [x[k] == index[k] == points[k] for k in range(len(x))]
    into = _row(alike, at, "a", combined("into"))
    is_merged = call.argument("reduce") in EXTREMES and call.inputs[0].dtype not in UNMERGED
    along = combined("points") if is_merged and index[at] == points[at] else None
    return signature([into, _row(alike, at, "i", along), _row(alike, at, "s", along)], [into])


def _embedding_text(a: Mapping[str, str]) -> str:
    if a["scale_grad_by_freq"] == "True":  # then the padding index is kept; -1 is none, unlike in F.embedding
        return f"aten.embedding.default({a['weight']}, {a['indices']}, {a['padding_idx']}, True, False)"
    return f"F.embedding({a['indices']}, {a['weight']})"


SCATTER_REDUCE_PART = PartKernel(
    axis=("self", "dim"),
    merged=("index", "dim"),
    call=call_of("scatter_reduce_part", "self dim index src | reduce include_self start size group"),
)


def _op(kind: str, rule: Rule, axis: tuple[str, AxisOfPart], words: str, text: Text | None = None) -> Op:
    """The row of an operator that counts along an axis: its kernel is told where the part lies."""
    return Op(f"aten::{kind}", rule, kernel=PartKernel(axis, call_of(f"{kind}_part", words)), text=text)


OPS = (
    _op("embedding", embedding, ("weight", 0), "indices weight | start size", _embedding_text),
    _op("index", index, ("self", None), "self indices | places"),
    _op("index_select", index_select, ("self", "dim"), "self dim index | start size"),
    _op("gather", gather, ("self", "dim"), "self dim index | start size"),
    Op("aten::_embedding_bag", embedding_bag),
    Op("aten::index_put", index_put),
    Op("aten::masked_scatter", all_whole),
    Op("aten::one_hot", "... -> ... classes!"),
    _op("scatter_add", scatter_add, ("self", "dim"), "self dim index src | start size"),
    _op("index_add", scatter_add, ("self", "dim"), "self dim index source | alpha start size"),
    Op("aten::scatter_reduce", scatter_reduce, kernel=SCATTER_REDUCE_PART),
    *(Op(f"aten::{kind}", _scatter()) for kind in "scatter index_fill index_copy slice_scatter".split()),
    Op("aten::select_scatter", _scatter(selects=True)),
)
