"""`recompute` and `prefetch` mark operators: what is computed or gathered again in backward, and how many values are
received before they are read."""

from collections.abc import Iterable, Sequence

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.errors.values import places_of
from ssdsl.plan.eval.expressions import evaluate, whole_number
from ssdsl.plan.eval.select import whole_operators
from ssdsl.plan.eval.units import repeated_units
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import AHEAD, WEIGHTS_AHEAD, Mark, State, WeightsMark
from ssdsl.plan.statements.shard import mark_weights, weights_of, without_state
from ssdsl.plan.values import GathersOf, Selection, StateOf, Value, item
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

Unit = frozenset[str]


def recompute(ctx: Context, s: nodes.RecomputeStatement) -> None:
    """Adds checkpoints: the units of the path, the items of a list, or else the repeated modules. `.gathers` makes
    none: it marks operators whose gathered operands are gathered again.

    Skips checkpoints that exist already. Raises PlanError for an operator that belongs to a different one.
    """
    value = evaluate(ctx, s.operators)
    if isinstance(value, GathersOf):
        operators = ctx.model.ordered(ctx.model.only_compute(value.operators))
        _mark(ctx, (op.name for op in operators if ctx.facts.of(op.name).regathers is None), regathers=Mark(1, s.span))
        return
    numbered: dict[int, list[Unit]] = {}
    for unit in (kept for names in _units(ctx, s, value) for kept in _of_layers(ctx, ctx.model.only_compute(names))):
        numbered.setdefault(_number(ctx, unit), []).append(unit)
    for number, units in numbered.items():  # those of one number have no layer in common
        new = [unit for unit in units if not _is_known(ctx, s, unit)]
        ctx.facts.units.update(((layer, number), unit) for unit in new for layer in _layers(ctx, unit))
        _mark(ctx, (name for unit in new for name in unit), checkpoint=Mark(number, s.span))


def _mark(ctx: Context, operators: Iterable[str], **mark: Mark | None) -> None:
    ctx.facts.revise(ctx.facts.numbers(operators), lambda record: replace(record, **mark))


def _of_layers(ctx: Context, unit: Unit) -> list[Unit]:
    """A unit as one of each layer, so that backward never needs the memory of two."""
    inside: dict[str, set[str]] = {}
    for op in ctx.model.ordered(unit):
        inside.setdefault(ctx.model.layers[op.path], set()).add(op.name)
    return [unit] if len(inside) == 1 else [*map(frozenset, inside.values())]


def _number(ctx: Context, unit: Unit) -> int:
    """The number of a new checkpoint: one that its layers do not have yet."""
    layers, counts = _layers(ctx, unit), ctx.facts.checkpoints
    number = max(counts.get(layer, 0) for layer in layers)
    counts.update(dict.fromkeys(layers, number + 1))
    return number


def _layers(ctx: Context, operators: Unit) -> set[str]:
    return {ctx.model.layers[op.path] for op in ctx.model.ordered(operators)}


def _units(ctx: Context, s: nodes.RecomputeStatement, value: Value) -> Sequence[Unit]:
    """The checkpoints that a value stands for."""
    if isinstance(value, tuple) and value:
        placed = zip(value, places_of(s.operators, len(value)), strict=True)
        return [whole_operators(ctx, item(one), place, "recompute") for one, place in placed]
    operators = whole_operators(ctx, value, s.operators, "recompute")
    if isinstance(value, Selection) and value.units:
        return _by_layer(ctx.model, value.units)
    if (known := ctx.model.repeated.get(operators)) is None:
        units = repeated_units(ctx.model, operators)
        known = ctx.model.repeated[operators] = tuple(run for _, names in units for run in _runs(ctx.model, names))
    return known


def _runs(model: ModelIndex, names: list[str]) -> list[Unit]:
    """The runs of a unit: operators that follow each other without gaps. Where only split operators of a layer are
    selected, attention and MLP become two checkpoints. Runs that read each other's results are one: `silu(gate) * up`
    with the product for `up` between."""
    runs: list[list[str]] = []
    at = model.compute_position
    for name in names:
        if runs and at[name] == at[runs[-1][-1]] + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return _joined(model, map(frozenset, runs))


def _by_layer(model: ModelIndex, units: Sequence[Unit]) -> Sequence[Unit]:
    """The units of a selection; those of one layer that read each other's results are one."""
    inside: dict[str, list[Unit]] = {}
    for unit in filter(None, map(model.only_compute, units)):
        layers = {model.layers[model.operators[name].path] for name in unit}
        inside.setdefault(min(layers) if len(layers) == 1 else "", []).append(unit)
    position = model.compute_position

    def first(unit: Unit) -> int:
        return min(position[name] for name in unit)

    joined = (_joined(model, sorted(those, key=first)) for layer, those in inside.items() if layer)
    return [*inside.get("", ()), *(unit for units in joined for unit in units)]


def _joined(model: ModelIndex, units: Iterable[Unit]) -> list[Unit]:
    """Units in the order of the graph; those that read each other's results directly are one."""
    found: list[Unit] = []
    for unit in units:
        read = {m.name for name in unit if found for m in model.graph.makers_of(model.operators[name])}
        near = [other for other in found if not read.isdisjoint(other)]
        found = [*(other for other in found if other not in near), unit.union(*near)]
    return found


def _is_known(ctx: Context, s: nodes.RecomputeStatement, unit: Unit) -> bool:
    """Whether there is no checkpoint to add: this unit is one already, or it is a region around others, which is noted
    here. A checkpoint that the unit is a part of becomes such a region. Raises PlanError if some of its operators
    belong to a different one."""
    inside, around = _meeting(ctx, unit)
    if unit in inside or unit in around or not (inside or around):
        return bool(inside or around)
    if around and not inside and all(unit < region for region in around):
        return False
    if not around and all(other < unit for other in inside):
        _surround(ctx, unit, s.span)
        return True
    if not around and len(inside) == 1 and all(unit < other for other in inside):
        ((larger, mark),) = inside.items()
        _mark(ctx, larger, checkpoint=None)
        _surround(ctx, larger, mark.span)
        return False
    known = inside | around
    operators = ((op, mark) for op in ctx.model.ordered(unit) for other, mark in known.items() if op.name in other)
    op, mark = next(operators)
    raise PlanError(RecomputedTwice(s.span, ctx.facts.of(op.name).module(op), first=mark.span))


def _meeting(ctx: Context, unit: Unit) -> tuple[dict[Unit, Mark], dict[Unit, Mark]]:
    """The checkpoints that have operators of a unit, and the regions around checkpoints that do."""
    facts, layers = ctx.facts, ctx.model.layers
    inside, around = dict[Unit, Mark](), dict[Unit, Mark]()
    for op in ctx.model.ordered(unit):
        record = facts.of(op.name)
        if record.checkpoint is not None:
            inside.setdefault(facts.units[layers[op.path], record.checkpoint.value], record.checkpoint)
        if record.within is not None:
            around.setdefault(facts.regions[record.within.value], record.within)
    return inside, around


def _surround(ctx: Context, unit: Unit, span: Span) -> None:
    """Notes that a unit runs again as a whole, around the checkpoints in it."""
    _mark(ctx, unit, within=Mark(len(ctx.facts.regions), span))
    ctx.facts.regions.append(unit)


class RecomputedTwice(Conflict):
    """An operator belongs to two checkpoints of which neither contains the other, or to three.

    A checkpoint may be a part of a larger one, as `recompute block` and `recompute block.mlp`: then the block runs
    again as a whole in a task of its own, and keeps what enters its MLP, which runs once more.
    """

    code = "E0221"
    title = "`{operator}` is already recomputed with other operators"
    help = "remove one"
    earlier = "recomputed here first"
    operator: str


MOST_AHEAD = 1024


def prefetch(ctx: Context, s: nodes.PrefetchStatement) -> None:
    """Notes the number for each operator, or of `OPS.weights` for each weight. Raises PlanError for a number out of
    range, or one that contradicts an earlier one."""
    value, ahead = evaluate(ctx, s.operators), whole_number(ctx, s.ahead)
    if not 0 <= ahead <= MOST_AHEAD:
        default = WEIGHTS_AHEAD if isinstance(value, StateOf) else AHEAD
        raise PlanError(NoSuchPrefetch(s.ahead.span, ahead, MOST_AHEAD, default))
    if isinstance(value, StateOf):
        _prefetch_weights(ctx, s, value, ahead)
        return
    operators = ctx.model.ordered(whole_operators(ctx, value, s.operators, "prefetch"))
    for op in operators:
        known = ctx.facts.of(op.name).ahead
        if known is not None and known.value != ahead:
            raise PlanError(
                PrefetchedTwice(s.ahead.span, ctx.facts.of(op.name).module(op), known.value, ahead, first=known.span)
            )
    _mark(ctx, (op.name for op in operators if ctx.facts.of(op.name).ahead is None), ahead=Mark(ahead, s.span))


def _prefetch_weights(ctx: Context, s: nodes.PrefetchStatement, value: StateOf, ahead: int) -> None:
    """Notes how far ahead weights are gathered. Raises PlanError for another state, or a number that contradicts an
    earlier one."""
    if value.state is not State.WEIGHTS:
        raise PlanError(OnlyWeights(s.operators.span, value.state, without_state(s.operators, value)))
    mark_weights(
        ctx.facts.prefetched,
        WeightsMark(weights_of(ctx, s.operators, value, "prefetch"), ahead, s.span),
        lambda weight, known: PrefetchedTwice(s.ahead.span, weight, known.value, ahead, first=known.span),
    )


class OnlyWeights(Traced):
    """`prefetch OPS.weights by 1` gathers weights in parts ahead. Of gradients and the optimizer's state nothing is."""

    code = "E0268"
    title = "there is nothing to prefetch of {state}"
    help = "write `{operators}.weights`"
    state: State
    operators: str

    @property
    def instead(self) -> tuple[str, ...]:
        return (f"{self.operators}.weights",)


class NoSuchPrefetch(Traced):
    """`prefetch OPS by N` keeps N buffers beside the one that is read next, for each value that OPS receive; `prefetch
    OPS.weights by N` gathers weights in parts (ZeRO-3) for N modules ahead of the one that computes.

    With 0 a value is requested once the one before it has been read. Each further buffer takes memory of the device.
    """

    code = "E0265"
    title = "cannot prefetch {ahead} values"
    help = "choose a number from 0 to {most}; the default is {default}"
    ahead: int
    most: int
    default: int


class PrefetchedTwice(Conflict):
    """Two `prefetch` give an operator different numbers of buffers."""

    code = "E0266"
    title = "`{operator}` is prefetched by {known} already, not by {ahead}"
    help = "remove one"
    earlier = "by another number here"
    operator: str
    known: int
    ahead: int
