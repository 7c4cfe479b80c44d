"""`split OPS.weights by row into dp`: shards state over devices (ZeRO), in unequal portions with `into dp = [3, 3, 2]`.
`split OPS.optimizer by matrix into dp` shards the optimizer's state in whole weights, for optimizers that need them
(Muon)."""

import math
import re
from collections.abc import Callable

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import POST, spell
from ssdsl.lang.suggest import counted, listed, nearest, suggest
from ssdsl.model.graph import Origin
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.errors.values import Wanted, items_of, places_of
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.select import require_some
from ssdsl.plan.plan import State, StateShard, WeightsMark
from ssdsl.plan.values import ActivationsOf, StateOf, Value, is_list, is_whole
from ssdsl.text.diagnostic import PlanError

ROW, MATRIX = "row", "matrix"


def shard(ctx: Context, s: nodes.SplitStatement, value: StateOf) -> None:
    """Adds the fact that some state of some weights is sharded. Raises PlanError if it is sharded over other axes
    already."""
    by_matrix = s.dim.text == MATRIX and value.state is State.OPTIMIZER
    if s.dim.text != ROW and not by_matrix:
        raise PlanError(OnlyByRow(s.dim.span, value.state, s.dim.text))
    portions = tuple([(cut.name.text, of_cut) for cut in s.cuts if (of_cut := _portions(ctx, cut, by_matrix))])
    weights = weights_of(ctx, s.operators, value, "split")
    if not weights:
        return
    new = StateShard(value.state, weights, tuple(cut.name.text for cut in s.cuts), s.span, by_matrix, portions)
    for old in ctx.facts.shards:
        is_other = (old.axes, old.whole, old.portions) != (new.axes, new.whole, new.portions)
        both = old.weights & weights
        if old.state is new.state and is_other and both:
            raise PlanError(ShardedTwice(s.span, new.state, min(both), first=old.span))
        for axis in (axis for axis in new.axes if both and axis in old.axes and not (old.whole or new.whole)):
            mine, its = dict(new.portions).get(axis), dict(old.portions).get(axis)
            if mine != its:
                raise PlanError(OtherPortions(s.span, min(both), axis, mine or its or (), first=old.span))
    ctx.facts.shards.append(new)


def _portions(ctx: Context, cut: nodes.Into, by_matrix: bool) -> tuple[int, ...]:
    """The portions that a statement gives the devices of an axis, in lowest terms: none if they are equal. Raises
    PlanError."""
    value = None if cut.count is None or by_matrix else evaluate(ctx, cut.count)
    has_list = value is not None and is_list(value)
    check_axis(ctx, cut.name, is_bare=cut.phrase is None and (cut.count is None or has_list))
    if cut.count is None or value is None:
        return ()
    found = items_of(ctx, value, is_whole, cut.count, Wanted.PORTIONS)
    for portion, place in zip(found, places_of(cut.count, len(found)), strict=True):
        if portion < 1:
            raise PlanError(BadPortion(place.span, portion))
    for mesh, axis, size in ctx.facts.axes():
        if axis == cut.name.text and size != len(found):
            raise PlanError(PortionsMissing(cut.count.span, axis, mesh.name, size, found))
    divisor = math.gcd(*found)
    return tuple(portion // divisor for portion in found) if len({*found}) > 1 else ()


def weights_of(ctx: Context, at: nodes.Expr, value: StateOf, statement: str) -> frozenset[str]:
    """The weights that the operators read; `at` is the expression. Raises PlanError if there are none, except of an
    item of a list."""
    weights = frozenset(
        operand.value
        for op in ctx.model.ordered(value.operators)
        for operand in op.inputs
        if ctx.model.graph.values[operand.value].origin is Origin.WEIGHT
    )
    require_some(ctx, weights, value.of_items, at, statement)
    return weights


def mark_weights(
    known: list[WeightsMark], new: WeightsMark, contradiction: Callable[[str, WeightsMark], Conflict]
) -> None:
    """Adds a number that a statement gives weights. Raises the contradiction to an earlier one, for a weight that has
    another number."""
    for other in known:
        if other.value != new.value and (both := other.weights & new.weights):
            raise PlanError(contradiction(min(both), other))
    if new.weights:
        known.append(new)


def without_state(at: nodes.Expr, value: Value) -> str:
    """The text of an expression, without the state that it ends with: `model` of `model.grads`."""
    return spell(
        at.target if isinstance(value, StateOf | ActivationsOf) and isinstance(at, nodes.Attribute) else at, POST
    )


def check_axis(ctx: Context, word: nodes.Word, *, is_bare: bool = True) -> None:
    """Raises PlanError for an index that is no axis of a mesh, or has a number of parts."""
    name = word.text
    if name in ctx.facts.broken:
        raise PlanError()
    axes = tuple(axis for _, axis, _ in ctx.facts.axes())
    if not is_bare or name not in axes:
        raise PlanError(StateOverAxis(word.span, name, not is_bare, axes))


class OnlyByRow(Traced):
    """State is sharded by rows: `split model.weights by row into dp`. Rows need not be even. That of the optimizer may
    be in whole weights: `split model.optimizer by matrix into dp`."""

    code = "E0217"
    title = "{verb} split by `row`"
    label = "not by `{dim}`"
    state: State
    dim: str

    @property
    def change(self) -> str:
        more = ", or `by matrix` for an optimizer that needs whole weights" if self.state is State.OPTIMIZER else ""
        return f"write `by row`{more}"

    @property
    def instead(self) -> tuple[str, ...]:
        return ("row", "matrix") if self.state is State.OPTIMIZER else ("row",)

    @property
    def verb(self) -> str:
        return "the optimizer's state is" if self.state is State.OPTIMIZER else f"{self.state} are"


class StateOverAxis(Traced):
    """State is sharded over devices, so the index is an axis of a mesh: `split model.weights by row into dp`."""

    code = "E0218"
    title = "state is split over the axes of a mesh"
    label = "`{name}` {reason}"
    name: str
    has_count: bool
    axes: tuple[str, ...]

    @property
    def reason(self) -> str:
        return "has a number of parts" if self.has_count else "is no axis of a mesh above"

    @property
    def change(self) -> str:
        if self.has_count:
            return f"write `into {self.name}`: the axis says how many parts there are"
        if not self.axes:
            return f"declare the devices above this line: `mesh gpus({self.name} = 2)`"
        return suggest(self.name, self.axes) or f"choose an axis: {listed(self.axes)}"

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.name,) if self.has_count else nearest(self.name, self.axes) or self.axes


class BadPortion(Traced):
    """Each device along an axis has a portion of the state, in proportion: `into dp = [3, 3, 2]`. Portions are relative
    and need not add up to anything."""

    code = "E0385"
    title = "a device cannot have a portion of {portion}"
    help = "give a whole number of at least 1"
    portion: int


class PortionsMissing(Traced):
    """Each device along an axis has a portion of the state: a list has as many numbers as the axis has devices, in all
    meshes with an axis of this name."""

    code = "E0386"
    title = "`{axis}` of `{mesh}` has {devices}, and the list has {portions}"
    help = "give each device of the axis one: `{fitting}`"
    axis: str
    mesh: str
    size: int
    given: tuple[int, ...]

    @property
    def devices(self) -> str:
        return counted(self.size, "device")

    @property
    def portions(self) -> str:
        return counted(len(self.given), "portion")

    @property
    def fitting(self) -> str:
        found = [*self.given, *[1] * (self.size - len(self.given))]
        return f"[{', '.join(map(str, found[: self.size]))}]"

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.fitting,)


class OtherPortions(Conflict):
    """Weights, gradients and the optimizer's state that are in parts over one axis have the same portions there: a part
    of the one consists of parts of the other."""

    code = "E0387"
    title = "the state of `{weight}` has other portions along `{axis}`"
    help = "give both the same: `into {axis} = [{list}]`"
    earlier = "split here first"
    weight: str
    axis: str
    portions: tuple[int, ...]

    @property
    def list(self) -> str:
        return ", ".join(map(str, self.portions))

    @property
    def instead(self) -> tuple[str, ...]:
        if self.span is None:
            return ()
        word = re.escape(self.axis)
        return (re.sub(rf"\b{word}( = \[[^\]]*\])?(?=,|$)", f"{self.axis} = [{self.list}]", self.span.text),)


class ShardedTwice(Conflict):
    """The same state of a weight is sharded in two ways."""

    code = "E0219"
    title = "{what} is already split in another way"
    help = "remove one"
    earlier = "split here first"
    state: State
    weight: str

    @property
    def what(self) -> str:
        of = {State.WEIGHTS: "", State.GRADS: "the gradient of ", State.OPTIMIZER: "the optimizer's state of "}
        return f"{of[self.state]}`{self.weight}`"
