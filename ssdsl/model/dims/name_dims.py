"""Names dimension classes in the words of the field.

A rule yields names for lists of *leaves*: the factors of one axis, outermost first, that no reshape divides further
(`factors.py`). Most lists have one. The first of `RULES` that names a leaf wins: the user's own names; then those of
attention, embeddings and losses (`heads`, `seq`, `vocab`, `hidden`), by the letters of operators' rows; then those that
follow from the place of a dimension in the graph (`experts`, `ffn`); at last the weight or the operator that introduces
it: `h.0.mixer.A_log.1`. A name does not depend on operators that do not have the dimension.
"""

import math
from collections.abc import Callable, Iterator

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.dims.analyse import Analysis, BoundCall
from ssdsl.model.dims.inner_names import PER_GROUP, factor_name
from ssdsl.model.dims.window import Moved
from ssdsl.model.graph import Origin
from ssdsl.model.load.batch import automatic
from ssdsl.model.load.model import Model
from ssdsl.model.ops.families.attention_and_softmax import attention, softmax
from ssdsl.model.ops.families.random import attention_dropout
from ssdsl.model.ops.op import regroup
from ssdsl.model.ops.registry import row

CAST = "aten::_to_copy"
SPACE = ("depth", "height", "width", "length")
IMAGE = ("channels", *SPACE, *(f"kernel_{word}" for word in SPACE))
FUSED = {"heads": "qkv", "ffn": "gate_up"}  # the factor in front of a dimension in a weight that fuses projections

Names = Iterator[tuple[list[int], str]]  # leaves, and the name of the dimension that they make together
Operands = list[tuple[str, list[list[str]], bool]]  # `BoundCall.inputs`: the value, and the letters of each of its axes


def name_dims(model: Model, capture: Capture, found: Analysis) -> dict[int, str]:
    """The name of every class of dimensions, by class. Several classes may share one name, such as one of each layer.

    If a dimension of a rule has several leaves, the first gets its name, and the others are `NAME_inner1` and so on.
    """
    naming = _Naming(model, capture, found, {})
    for rule in RULES:
        for leaves, name in rule(naming):
            for depth, leaf in enumerate(leaves):
                naming.names.setdefault(leaf, factor_name(name, depth))
    return naming.names


class _Naming:
    """A model's readings, and the names given so far. `given` are the weights; `weights` are these and what takes the
    place of one: casts and views, and a weight that is divided by its norm or has a product of two small ones added.
    `of_weights` are the calls that compute these."""

    def __init__(self, model: Model, capture: Capture, found: Analysis, names: dict[int, str]) -> None:
        self.model, self.capture, self.found, self.names = model, capture, found, names
        self.given = [name for name, origin in capture.origins.items() if origin is Origin.WEIGHT]
        self.weights = set(self.given)
        self.of_weights = self._find_weights()
        self.computed = {o for reading in found.readings for o in reading.call.outputs} | set(model.axes)
        self.taken = {name for axes in model.axes.values() for name in axes}
        self.pixels = {leaf for leaves, _ in _of_letters(*SPACE)(self) if len(leaves) == 1 for leaf in leaves}
        self.vocabularies = [r.slots["vocab"].factors for r in found.readings if self.looks_up(r)]

    def _find_weights(self) -> frozenset[str]:
        """Adds to `weights` what is computed of weights, buffers and constants alone, element by element, and has the
        shape of one of the weights that it is computed of; returns the names of the calls that it follows from."""
        capture = self.capture
        known = (Origin.WEIGHT, Origin.BUFFER, Origin.CONSTANT)
        alone = {name for name, origin in capture.origins.items() if origin in known}
        behind: dict[str, frozenset[str]] = {}  # by value that is alone: the calls that it follows from
        found = frozenset[str]()
        for call in capture.calls:
            refs = call.refs()
            if not refs or not alone.issuperset(refs):
                continue
            alone.update(call.outputs)
            calls = frozenset((call.name,)).union(*(behind.get(r, ()) for r in refs))
            behind |= dict.fromkeys(call.outputs, calls)
            shapes = {capture.tensors[r].shape for r in refs if r in self.weights}
            like = [o for o in call.outputs if o in capture.tensors and capture.tensors[o].shape in shapes]
            if shapes and (call.target.name() == CAST or row(call).regroups):
                self.weights.update(call.outputs)
            elif like and not row(call).contraction:
                self.weights.update(like)
                found |= calls
        return found

    def looks_up(self, reading: BoundCall) -> bool:
        """Whether it is an embedding of an input or of computed indices, not of constant positions."""
        is_embedding = reading.call.target.name() == "aten::embedding" and "vocab" in reading.slots
        return is_embedding and reading.call.refs()[1] in self.computed

    def leaves(self, reading: BoundCall, letter: str) -> list[int]:
        """The dimensions of a letter of a call; none if it has no such letter."""
        slot = reading.slots.get(letter)
        return self.found.factors.leaves(slot.factors) if slot else []

    def axis(self, reading: BoundCall, operands: Operands, number: int, axis: int) -> list[int]:
        """The dimensions of one axis of an operand."""
        slots = operands[number][1][axis]
        return [leaf for slot in slots for leaf in self.found.factors.leaves(reading.slots[slot].factors)]

    def size(self, leaves: list[int]) -> int:
        return math.prod(map(self.found.factors.size, leaves))

    def all(self, reading: BoundCall, operands: Operands) -> set[int]:
        """All dimensions of these operands of a call."""
        slots = {slot for _, axes, _ in operands for axis in axes for slot in axis}
        return {leaf for slot in slots for leaf in self.leaves(reading, slot)}

    def is_weight(self, value: str) -> bool:
        """Whether a value is a weight, a cast of one, or one that is reshaped or transposed."""
        return value in self.weights

    def projects(self, reading: BoundCall) -> bool:
        """Whether the call applies weights to one activation."""
        rest = [self.capture.tensors[r] for r in reading.call.refs() if not self.is_weight(r)]
        return row(reading.call).projects and sum(t.has_fractions for t in rest) == 1


def _of_inputs(*, named: bool) -> Callable[[_Naming], Names]:
    """The rule that names axes of inputs as the user or convention does, or those without names by their input's name
    and their number."""

    def rule(n: _Naming) -> Names:
        for name, axes in n.model.axes.items():
            for at, (factors, axis) in enumerate(zip(n.found.axes.get(name, ()), axes, strict=False)):
                if named == (axis != automatic(name, at)):
                    yield n.found.factors.leaves(factors), axis

    return rule


def _of_attention(n: _Naming) -> Names:
    """Names heads, and the positions of queries and keys, unless the user calls something else a sequence."""
    for reading in n.found.readings:
        if row(reading.call).dims in (attention, attention_dropout):
            yield n.leaves(reading, "heads"), "heads"
            yield n.leaves(reading, PER_GROUP), PER_GROUP
            yield from _positions(n, (n.leaves(reading, "s"), n.leaves(reading, "t")))


def _positions(n: _Naming, axes: tuple[list[int], ...]) -> Names:
    """Names the positions in these axes of an attention. A single dimension is a sequence. Several that attention sees
    as one are a window of an image, unless other operators name them: between convolutions, pixels are called height
    and width in attention too."""
    for leaves in axes:
        name = "seq" if len(leaves) == 1 else "window"
        if name not in n.taken and (len(leaves) == 1 or not n.pixels.issuperset(leaves)):
            yield leaves, name


def _of_tables(n: _Naming) -> Names:
    """Names the axes of embeddings' tables and of losses' scores, and the stream between layers: `vocab`, `positions`,
    `classes` and `hidden`."""
    sizes = [n.size(n.found.factors.leaves(v)) for v in n.vocabularies]
    for reading in n.found.readings:
        if leaves := n.leaves(reading, "vocab"):
            if reading.call.target.name() == "aten::embedding":
                yield leaves, "vocab" if n.looks_up(reading) else "positions"
            else:
                yield leaves, "vocab" if n.size(leaves) in sizes else "classes"
    for reading in n.found.readings:
        if reading.call.target.name() != "aten::embedding" or n.looks_up(reading):
            yield n.leaves(reading, "hidden"), "hidden"


def _of_softmax(n: _Naming) -> Names:
    """Names heads and positions of attention in plain operators: the scores [batch, heads, queries, keys] of its
    softmax."""
    for reading in n.found.readings:
        if row(reading.call).dims is softmax and (heads := n.leaves(reading, "heads")):
            yield heads, "heads"
            yield from _positions(n, tuple(n.axis(reading, reading.inputs, 0, axis) for axis in (2, 3)))


def _of_letters(*roles: str) -> Callable[[_Naming], Names]:
    """The rule that gives dimensions these names, if a row of the table calls their letters so. A prime marks a second
    dimension of one name in a row: `hidden'` is named `hidden` too."""

    def rule(n: _Naming) -> Names:
        for role in roles:
            for reading in n.found.readings:
                for letter in reading.slots:
                    if letter.rstrip("'") == role:
                        yield n.leaves(reading, letter), role

    return rule


def _of_values(n: _Naming) -> Names:
    """Names the width of attention's values `head_dim`, which may differ from that of queries and keys."""
    for reading in n.found.readings:
        yield n.leaves(reading, "value_dim"), "head_dim"


def _beside_heads(n: _Naming) -> Names:
    """Names the innermost dimension of an axis of heads `head_dim`."""
    for axes in n.found.axes.values():
        for leaves in map(n.found.factors.leaves, axes):
            words = [n.names.get(leaf, "") for leaf in leaves]
            if len(leaves) > 1 and set(words[:-1]) <= {"heads", PER_GROUP}:
                yield leaves[-1:], "head_dim"


def _of_products(n: _Naming) -> Names:
    """Names heads of attention without a softmax: what two activations and their product have (linear attention, and
    states of recurrent layers), and a projection makes as the outer one of several factors."""
    outer = {leaf for name in n.given for axis in n.found.axes[name] for leaf in n.found.factors.leaves(axis)[:-1]}
    for reading in n.found.readings:
        operands = (*reading.inputs, *reading.outputs)
        if row(reading.call).contraction and len(operands) == 3 and not any(n.is_weight(o[0]) for o in operands):
            shared = set.intersection(*({slot for axis in axes for slot in axis} for _, axes, _ in operands))
            leaves = (leaf for letter in reading.slots if letter in shared for leaf in n.leaves(reading, letter))
            yield from (([leaf], "heads") for leaf in leaves if leaf in outer)


def _in_front(n: _Naming) -> Names:
    """Names the number of projections that one weight fuses, in front of the dimension that each of them makes: `qkv`
    in `[qkv, heads, head_dim]`."""
    for name in n.given:
        for leaves in map(n.found.factors.leaves, n.found.axes[name]):
            words = [n.names.get(leaf, "") for leaf in leaves]
            for word, fused in FUSED.items():
                if words[1:2] == [word]:
                    yield leaves[:1], fused


def _of_experts(n: _Naming) -> Names:
    """Names the letters of a product that the weight, the activation and the result have: each expert has a weight.
    Groups of a convolution are no experts."""
    for reading in n.found.readings:
        weights = [i for i in reading.inputs if n.is_weight(i[0])]
        if row(reading.call).contraction and len(weights) == 1 and len(reading.inputs) > 1:
            operands = (*reading.inputs, *reading.outputs)
            shared = set.intersection(*({slot for axis in axes for slot in axis} for _, axes, _ in operands))
            mine = (letter for letter in reading.slots if letter in shared and letter.rstrip("'") not in IMAGE)
            yield from ((n.leaves(reading, letter), "experts") for letter in mine)


def _of_moves(n: _Naming) -> Names:
    """Names what is padded, sliced or joined as its result is, and the other way round: they are one axis of the model,
    longer and shorter."""
    for readings in (n.found.readings, reversed(n.found.readings)):
        for reading in readings:
            for letter in (slot.letter for slot in reading.slots.values()):
                if letter.window is None or not isinstance(letter.window.shape, Moved):
                    continue
                given, made = n.leaves(reading, letter.name), n.leaves(reading, letter.window.of)
                if len(given) == len(made) == 1:
                    yield from (([b], n.names[a]) for a, b in ((*given, *made), (*made, *given)) if a in n.names)


def _of_ranks(n: _Naming) -> Names:
    """Names the dimension between two projections beside a third, from what the first reads to what the second makes,
    if it is narrower than both ends: the rank of a low-rank adapter (Hu et al., LoRA, 2021)."""
    ends: dict[int, list[tuple[frozenset[int], frozenset[int]]]] = {}
    for reading in filter(n.projects, n.found.readings):
        given, result = n.all(reading, reading.inputs), n.all(reading, reading.outputs)
        pair = frozenset(given - result), frozenset(result & n.all(reading, reading.inputs[1:]))
        for leaf in pair[0] | pair[1]:
            ends.setdefault(leaf, []).append(pair)
    direct = {pair for pairs in ends.values() for pair in pairs}
    for leaf, pairs in ends.items():
        into = [summed for summed, made in pairs if made == {leaf}]
        out = [made for summed, made in pairs if summed == {leaf}]
        wide = min((n.size([*end]) for end in (*into, *out)), default=0)
        if n.size([leaf]) < wide and any((one, other) in direct for one in into for other in out):
            yield [leaf], "rank"


def _between_projections(n: _Naming) -> Names:
    """Names dimensions that one projection makes and another sums over, with no operator between that needs them whole.

    No projection has two dimensions called `ffn`, so a split by it cuts the first projection by its results and the
    second by its summed dimension (Megatron-LM, 2019). Dimensions of few projections come first: one that all layers
    have is the stream between them, `hidden`. Of two that are left, the wider one is `ffn`.
    """
    users: dict[int, list[int]] = {}
    made, summed, barred, streams = set[int](), set[int](), set[int](), set[int]()
    for number, reading in enumerate(n.found.readings):
        given, result = n.all(reading, reading.inputs), n.all(reading, reading.outputs)
        if n.projects(reading):
            made |= result & n.all(reading, reading.inputs[1:])
            summed |= given - result
            streams |= _twice(n, reading)
            for leaf in sorted(given | result):
                users.setdefault(leaf, []).append(number)
        elif row(reading.call).dims is not regroup and reading.call.name not in n.of_weights:
            barred |= _not_passed(n, reading, given, result)
    free = [leaf for leaf in users if leaf in made & summed and leaf not in barred | set(n.names)]
    cut: set[int] = set()  # the projections that have a dimension called `ffn` already
    order = {leaf: (len(users[leaf]), -n.size([leaf])) for leaf in free if leaf not in streams}
    for leaf in sorted(order, key=order.__getitem__):
        if not cut & set(users[leaf]):
            cut |= set(users[leaf])
            yield [leaf], "ffn"
    yield from (([leaf], "hidden") for leaf in free)


def _twice(n: _Naming, reading: BoundCall) -> set[int]:
    """Dimensions that a projection both sums over and makes: `x + linear(x)`."""
    letters = [set(n.leaves(reading, letter)) for letter in reading.slots]
    return {leaf for leaves in letters for leaf in leaves if sum(leaf in other for other in letters) > 1}


def _not_passed(n: _Naming, reading: BoundCall, given: set[int], result: set[int]) -> set[int]:
    """Dimensions of an operator that it needs whole or sums over, instead of passing them on element by element or
    slice by slice. `given` are those of its operands, `result` those of its results."""
    if row(reading.call).contraction:
        return given | result
    fixed = {leaf for name, slot in reading.slots.items() if slot.letter.fixed for leaf in n.leaves(reading, name)}
    return fixed | (given - result)


def _of_weights(n: _Naming) -> Names:
    """Names axes of weights by the weight and the number of the axis."""
    for name in n.given:
        for at, factors in enumerate(n.found.axes[name]):
            yield n.found.factors.leaves(factors), f"{name}.{at}"


def _of_results(n: _Naming) -> Names:
    """Names all that is left by the call, or the weight, input or constant, that introduces it."""
    for call in n.capture.calls:
        for output in (o for o in call.outputs if o in n.found.axes):
            for factors in n.found.axes[output]:
                yield n.found.factors.leaves(factors), f"{introducer(call)}.out"
    for name in n.capture.origins:
        for at, factors in enumerate(n.found.axes[name]):
            yield n.found.factors.leaves(factors), f"{name}.{at}"


def introducer(call: CapturedCall) -> str:
    """The path of the module that makes a call; outside of all modules, the name of the call."""
    return call.path or call.name


RULES = (  # the strongest first
    _of_inputs(named=True),
    _of_attention,
    _of_moves,
    _of_tables,
    _of_softmax,
    _of_products,
    _of_letters("heads", "hidden", "head_dim", "experts"),
    _of_values,
    _beside_heads,
    _of_experts,
    _of_ranks,
    _between_projections,
    _in_front,
    _of_letters(*IMAGE),
    _of_moves,
    _of_inputs(named=False),
    _of_weights,
    _of_results,
)
