"""The parts of operators: the types that a part reads and leaves, and the pending sums of the gradients it returns.

Where the operator is split by a dimension along a coordinate, a tensor has along that coordinate (docs/design.md,
Layouts):

| | if it has the dimension | if not |
|---|---|---|
| output | the digit | one addend of a sum |
| its gradient, needed | the digit | whole |
| input, needed | the digit | the same everywhere |
| its gradient, produced | the digit | one addend |

An operand that only the first device adds (a bias) gets its whole gradient on every device. An operator that is linear
in some operands may work on addends of them: it leaves an addend, and the gradients of its other operands are addends.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from ssdsl.ir.function import Carried, OpSplit, Split
from ssdsl.ir.value import Axis, Coordinate
from ssdsl.model.graph import Operand, Operator, Ref
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.ops.rows import is_linear as registry_is_linear
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Factors, Local, LocalDigit, Regions, are_all, free, in_parts, on_axes
from ssdsl.prove.types.rows import AT_EXPERTS, in_both_orders
from ssdsl.prove.types.windows import windows_of
from ssdsl.record import Record, replace


class Combining(Record):
    """The function that combines the parts of a dimension; `told` are the arguments that it takes about its part.

    `talks`: the parts communicate. `into`: it is told its part of one axis alone, and only parts of other dimensions
    communicate; the number of the operand that has the axis, and the operator's argument that names it.
    """

    function: str
    told: tuple[str, ...] = ()
    talks: bool = True
    into: tuple[int, str] | None = None


def _parts(kinds: str, *told: str) -> dict[str, Combining]:
    return {kind: Combining(f"{kind}_parts", told) for kind in kinds.split()}


ATTENTION = ("scaled_dot_product_attention", "ssdsl::banded_attention")
COMBINING = {  # by the kind of operator, or by its full name
    **_parts("batch_norm group_norm instance_norm layer_norm rms_norm", "count"),
    "cross_entropy_loss": Combining("cross_entropy_parts", ("start", "size")),
    **_parts("softmax log_softmax logsumexp amax amin"),
    **_parts("argmax argmin", "start"),
    **{f"aten::{kind}.dim": Combining(f"{kind}_parts", ("start",)) for kind in ("max", "min")},
    **{f"aten::{kind}": Combining(f"a{kind}_parts") for kind in ("max", "min")},
    **dict.fromkeys(ATTENTION, Combining("attention_keys", ("regions", "queries"))),
    **_parts("cumsum cumprod logcumsumexp", "part"),
    **_parts("topk", "start", "part"),
    "ssdsl::linear_scan": Combining("linear_scan_parts", ("part",)),
    "scatter_add": Combining("scatter_add_part", ("start", "size"), talks=False),
    "scatter_reduce": Combining("scatter_reduce_part", ("start", "size"), into=(0, "dim")),
    "index_add": Combining("index_add_part", ("start", "size"), talks=False),
}

OURS = ("aten::", "ssdsl::")  # operators whose rules stand here; users' rows have those of others

# if keys are cut like their queries
TOGETHER_WITH = dict.fromkeys(ATTENTION, Combining("attention_ring", ("regions", "queries")))


def combining(operator: Operator, *, together: bool = False) -> Combining | None:
    """The function that combines the parts of one of torch's operators, or of ours; `together`: of two dimensions cut
    alike. None if there is none."""
    if operator.target.startswith("ssdsl::"):  # an operator of ours may have the kind of the one that it replaces
        return (TOGETHER_WITH if together else COMBINING).get(operator.target)
    if together:
        return TOGETHER_WITH.get(operator.kind)
    return COMBINING.get(operator.target) or COMBINING.get(operator.kind) or COMBINING.get(_called(operator))


def _called(operator: Operator) -> str:
    """The name of the function that the operator calls. It may differ from its kind: a draw is rewritten to calls of
    other functions (`normal` to `where`, for example) and keeps its kind."""
    return operator.target.removeprefix("aten::").partition(".")[0]


class OperatorPart(Record):
    """A part of an operator: the types that it reads and leaves, and the pending sums in each operand's gradient
    (`returned`). `own` are the coordinates of its splits."""

    reads: tuple[Local, ...]
    results: tuple[Local, ...]
    returned: tuple[frozenset[Coordinate], ...]
    own: frozenset[Coordinate]


class _Dim(Record):
    size: int
    fixed: bool
    combined: bool


class _Signature(Record):
    """The facts on which the rule of an operator depends: they are equal for the same operator in all layers.

    `read`: for each output, whether anything reads it.
    """

    kind: str
    combines: bool
    dims: tuple[_Dim, ...]
    inputs: tuple[tuple[tuple[tuple[int, ...], ...], bool], ...]
    outputs: tuple[tuple[tuple[int, ...], ...], ...]
    read: tuple[bool, ...]


class _Addends(Record):
    """A `Carried` with its operands by position, and each axis of its coordinate by itself."""

    coordinates: tuple[Coordinate, ...]
    operands: tuple[bool, ...]


def _each(coordinate: Coordinate) -> tuple[Coordinate, ...]:
    """Each axis by itself, or the index in time."""
    return tuple(map(Axis, coordinate.names)) if isinstance(coordinate, Axis) else (coordinate,)


def part_of(
    operator: Operator, splits: tuple[OpSplit, ...], read: Collection[str], sizes: Mapping[str, int]
) -> OperatorPart:
    """The part of an operator. Raises Wrong if it may not be split like this. `sizes` are those of the mesh's axes.

    `read` are the values that anything reads. A result that nothing reads need not be a part of the whole: an embedding
    bag leaves for its backward the bags of its words, which do not have the dimension `hidden`.
    """
    for split in splits:
        if isinstance(split, Carried):
            check_linear(operator, split)
    signature = _Signature(
        operator.target,
        _combines(operator),
        tuple(_Dim(d.size, bool(d.fixed), d.combined) for d in operator.dims),
        tuple((o.axes, o.once) for o in operator.inputs),
        tuple(o.axes for o in operator.outputs),
        tuple(o.value in read for o in operator.outputs),
    )
    bare = tuple(
        _cut(operator, s, splits, sizes)
        if isinstance(s, Split)
        else _Addends(_each(s.coordinate), tuple(o.value in s.operands for o in operator.inputs))
        for s in splits
    )
    return _part(signature, bare)


class _Cut(Record):
    """A split by its digit. `windows` are the dimensions that are windowed on the split one, each with the regions that
    the parts need. `also` is another dimension, with its digit. `counts` are the devices along each axis, where several
    together are the coordinate."""

    coordinate: Coordinate
    dim: int
    digit: LocalDigit
    windows: tuple[tuple[int, Regions], ...]
    also: tuple[int, LocalDigit] | None = None
    counts: tuple[int, ...] = ()

    @property
    def digits(self) -> tuple[tuple[int, LocalDigit], ...]:
        """The dimensions that are cut, each with its digit."""
        return ((self.dim, self.digit), *([] if self.also is None else [self.also]))

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Each axis by itself, or the index in time."""
        return _each(self.coordinate)


def _cut(operator: Operator, split: Split, splits: tuple[OpSplit, ...], sizes: Mapping[str, int]) -> _Cut:
    if split.digit.at is not None and split.digit.stride != 1:
        raise Wrong(Rule.NEST, "parts of the whole dimension", split)
    digit = LocalDigit(0, split.digit.stride, split.digit.parts, split.digit.at)
    also: tuple[int, LocalDigit] | None = None
    if split.also is not None and operator.target in AT_EXPERTS:
        digit, other = in_both_orders(operator, split)
        also = split.also, other
    elif split.also is not None:
        _check_together(operator, split)
        also = split.also, digit
    names = split.coordinate.names if isinstance(split.coordinate, Axis) else ()
    counts = tuple(sizes[name] for name in names)
    return _Cut(split.coordinate, split.dim, digit, windows_of(operator, split, splits), also, counts)


def _check_together(operator: Operator, split: Split) -> None:
    """Raises Wrong unless a split of two dimensions cuts the queries and the keys of attention, and these are equally
    many."""
    key, value = (o.axes[-2] for o in operator.inputs[1:3]) if len(operator.inputs) > 2 else ((), ())
    queries = operator.inputs[0].axes[-2]
    wanted = ((split.dim,), (split.also,), (split.also,))
    sizes = {operator.dims[d].size for d in split.dims}
    alone = any(split.also in axis for o in operator.inputs[3:] for axis in o.axes if (split.dim,) not in o.axes)
    if combining(operator, together=True) is None or (queries, key, value) != wanted or len(sizes) > 1 or alone:
        raise Wrong(Rule.TWO_SPLITS, "one dimension, or queries with their keys", split)


@lru_cache(maxsize=65536)
def _part(signature: _Signature, splits: tuple[_Cut | _Addends, ...]) -> OperatorPart:
    coordinates = [c for s in splits for c in s.coordinates]
    if len(set(coordinates)) != len(coordinates):
        raise Wrong(Rule.TWO_SPLITS, "one split for each coordinate", ", ".join(c.name for c in coordinates))
    cuts = [s for s in splits if not isinstance(s, _Addends)]
    addends = [s for s in splits if isinstance(s, _Addends)]
    _check_cuts(signature, cuts)
    reads, returned = [], []
    for at, (axes, once) in enumerate(signature.inputs):
        local, owed = Local(), []
        for cut in cuts:
            for coordinate, digit in _digits(signature, cut, axes):
                if digit is not None:
                    local = local.fixing(coordinate, digit)
                elif not (once and _is_summed(signature, cut.dim) and isinstance(cut.coordinate, Axis)):
                    owed.append(coordinate)  # each part returns the gradient of its own use: they add up
        for s in addends:
            if s.operands[at]:
                local = local.owing(*s.coordinates)
            else:
                owed += s.coordinates
        reads.append(local)
        returned.append(frozenset(owed))
    results = []
    for axes, is_read in zip(signature.outputs, signature.read, strict=True):
        local = Local(partial=frozenset(c for s in addends for c in s.coordinates))
        for cut in cuts:
            if digits := [(c, d) for c, d in _digits(signature, cut, axes) if d is not None]:
                for coordinate, digit in digits:
                    local = local.fixing(coordinate, digit)
            elif _is_summed(signature, cut.dim):
                local = local.owing(*cut.coordinates)
            elif is_read and not signature.dims[cut.dim].combined:
                raise Wrong(Rule.FIXED, "a dimension that all results have, or none", f"dimension {cut.dim}")
        results.append(local)
    return OperatorPart(tuple(reads), tuple(results), tuple(returned), frozenset(coordinates))


def _check_cuts(signature: _Signature, cuts: list[_Cut]) -> None:
    every = [(c, dim, digit) for c in cuts for dim, digit in c.digits]
    for cut, dim, _ in every:
        if not 0 <= dim < len(signature.dims) or signature.dims[dim].fixed:
            raise Wrong(Rule.FIXED, "a dimension that can be split", f"dimension {dim}")
        if signature.dims[dim].combined and not (isinstance(cut.coordinate, Axis) and signature.combines):
            raise Wrong(Rule.COMBINED, "parts on devices, and a kernel that combines them", cut.coordinate.name)
    for dim in {dim for _, dim, _ in every}:
        digits = frozenset(digit for _, d, digit in every if d == dim)
        if len(digits) != sum(d == dim for _, d, _ in every):
            raise Wrong(Rule.NEST, "each digit once", f"dimension {dim}")
        size = signature.dims[dim].size
        free(((size,),), digits)
        for digit in digits:  # parts of results do not overlap, and together are the whole
            if digit.at is not None and not are_all(digit.at, size):
                raise Wrong(Rule.NEST, f"parts that together are the {size} positions", digit)


def _is_summed(signature: _Signature, dim: int) -> bool:
    carried = any(dim in axis for axes in signature.outputs for axis in axes)
    return not carried and not signature.dims[dim].combined


def _digits(
    signature: _Signature, cut: _Cut, axes: tuple[tuple[int, ...], ...]
) -> Iterator[tuple[Coordinate, LocalDigit | None]]:
    """Yields each coordinate of a split, with the digit that it fixes in a tensor with these dimensions per axis: one
    of several axes together, or one of each."""
    digit = _digit(signature, cut, axes)
    if len(cut.counts) < 2 or digit is None:
        yield from ((c, digit) for c in cut.coordinates)
        return
    size, each = [signature.dims[d].size for axis in axes for d in axis][digit.factor], digit.stride
    at = digit.at or tuple(((k * each, (k + 1) * each),) for k in range(digit.parts))
    yield from zip(cut.coordinates, on_axes(digit.factor, size, at, cut.counts), strict=True)


def _digit(signature: _Signature, cut: _Cut, axes: tuple[tuple[int, ...], ...]) -> LocalDigit | None:
    """The digit that a split fixes in a tensor with these dimensions per axis."""
    dims = [d for axis in axes for d in axis]
    if dims.count(cut.dim) > 1:
        raise Wrong(Rule.FIXED, "a dimension that a tensor has once", f"dimension {cut.dim}")
    for dim, digit in cut.digits:
        if dim in dims:
            return replace(digit, factor=dims.index(dim))
    for dim, at in cut.windows:
        if dim in dims:
            return in_parts(dims.index(dim), signature.dims[dim].size, at)
    return None


def shape_of(operator: Operator, operand: Operand) -> Factors:
    """The shape of the whole tensor: the sizes of the factors of each axis."""
    return tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes)


# -- linear operators --------------------------------------------------------------------------------------------------

# An operator is linear in all of these operands together, or in one of them while the others are constant.
TOGETHER = {
    "add": "a + s * b",
    "sub": "a - s * b",
    "neg": "- a",
    "sum": "of elements",
    "reshape": "moves elements",
    "_to_copy": "rounds to another floating type",
    **dict.fromkeys(
        """
        view _unsafe_view flatten unflatten squeeze unsqueeze expand transpose t permute select unbind cat stack
        """.split(),
        "moves or repeats elements",
    ),
}
OF_OURS = {"ssdsl::dropout"}  # in its first operand; the mask is the same for all addends
ONE_BY_ONE = {"mul": (0, 1), "div": (0,), "dot": (0, 1), "matmul": (0, 1)}  # a * b in a and in b; a / b in a
SOME = {  # in these operands together, while the others are constant
    "where": ((1, 2),),  # a or b
    "lerp": ((0, 1),),  # a + w * (b - a)
    "addcmul": ((0, 1), (0, 2)),  # a + s * b * c
    "addcdiv": ((0, 1),),  # a + s * b / c
}


def _combines(operator: Operator) -> bool:
    """Whether some kernel combines the parts of a dimension: by the tables here, or by a user's row."""
    if operator.target.startswith(OURS):
        return combining(operator) is not None
    return operator.row.kernel is not None


def check_linear(operator: Operator, carried: Carried) -> None:
    """Raises Wrong unless the operator is linear in the operands that are addends."""
    values = [o.value for o in operator.inputs]
    word = _called(operator)
    carrying = [at for at, v in enumerate(values) if v in carried.operands]
    wrong = Wrong(
        Rule.LINEAR, f"operands in which `{operator.kind}` is linear", ", ".join(sorted(carried.operands)) or "none"
    )
    if carried.operands - set(values) or not carrying:
        raise wrong
    if operator.target.startswith("ssdsl::"):
        is_linear = carrying == [0] and operator.target in OF_OURS and values[0] not in values[1:]
    elif not operator.target.startswith("aten::"):  # a user's row says it
        is_linear = registry_is_linear(operator, carrying)
    elif word in TOGETHER:
        given = list(_tensors_and_numbers(operator))
        is_linear = len(carrying) == len(values) and (word not in ("add", "sub") or all(given))
    elif word in SOME:
        held = [v for at, v in enumerate(values) if at not in carrying]
        is_linear = tuple(carrying) in SOME[word] and not carried.operands.intersection(held)
    elif word not in ONE_BY_ONE and operator.row.name not in ROWS:  # a user's row for a rare operator of torch
        is_linear = registry_is_linear(operator, carrying)
    else:
        allowed = ONE_BY_ONE.get(word, ())
        is_linear = len(carrying) == 1 and carrying[0] in allowed and len(set(values)) == len(values)
    options = dict(operator.kwargs)
    rounds = options.get("rounding_mode") is not None or any(w in str(options.get("dtype")) for w in ("int", "bool"))
    if not is_linear or rounds:
        raise wrong


def _tensors_and_numbers(operator: Operator) -> Iterator[bool]:
    """Yields for each of the first two arguments whether it is a tensor: a number would be added by every part."""
    for argument in operator.args[1:3]:
        yield isinstance(argument, Ref)
