"""`split OPS.weights by row into dp`: shards state over devices (ZeRO). `split OPS.optimizer by matrix into dp` shards
the optimizer's state in whole weights, for optimizers that need them (Muon)."""

from collections.abc import Callable

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import POST, spell
from ssdsl.lang.suggest import listed, nearest, suggest
from ssdsl.model.graph import Origin
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.eval.select import require_some
from ssdsl.plan.plan import State, StateShard, WeightsMark
from ssdsl.plan.values import ActivationsOf, StateOf, Value
from ssdsl.text.diagnostic import PlanError

ROW, MATRIX = "row", "matrix"


def shard(ctx: Context, s: nodes.SplitStatement, value: StateOf) -> None:
    """Adds the fact that some state of some weights is sharded. Raises PlanError if it is sharded over other axes
    already."""
    is_whole = s.dim.text == MATRIX and value.state is State.OPTIMIZER
    if s.dim.text != ROW and not is_whole:
        raise PlanError(OnlyByRow(s.dim.span, value.state, s.dim.text))
    for cut in s.cuts:
        check_axis(ctx, cut.name, is_bare=cut.count is None and cut.phrase is None)
    weights = weights_of(ctx, s.operators, value, "split")
    if not weights:
        return
    new = StateShard(value.state, weights, tuple(cut.name.text for cut in s.cuts), s.span, is_whole)
    for old in ctx.facts.shards:
        is_other = (old.axes, old.whole) != (new.axes, new.whole)
        if old.state is new.state and is_other and (both := old.weights & weights):
            raise PlanError(ShardedTwice(s.span, new.state, min(both), first=old.span))
    ctx.facts.shards.append(new)


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
