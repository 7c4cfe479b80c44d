"""Makes a plan from a script and a graph: carries out the statements, and reports independent mistakes together."""

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from ssdsl.identity import ByIdentity
from ssdsl.lang import nodes
from ssdsl.lang.recover import Recovered, in_order
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.ops.reader import placed_dims
from ssdsl.plan.alter import altered_by, is_altered
from ssdsl.plan.check import check, warnings
from ssdsl.plan.context import Context, begin
from ssdsl.plan.declarations import never_used
from ssdsl.plan.divide_axes import divide_axes
from ssdsl.plan.errors.names import CallsTooDeep, UnknownName, UnknownParam, WrongArguments
from ssdsl.plan.errors.parts import UnknownCount
from ssdsl.plan.errors.place import NoSuchAxis
from ssdsl.plan.errors.select import NoSuchKind, NoSuchPath
from ssdsl.plan.errors.split import NoSuchDimension
from ssdsl.plan.facts import Facts
from ssdsl.plan.hints.round_trips import round_trips
from ssdsl.plan.inner_meshes import on_outer_meshes
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.plan.neighbours.place_beside import place_beside
from ssdsl.plan.plan import Index, OpPlan, Plan, StatePlan
from ssdsl.plan.separate import separated
from ssdsl.plan.statements.builtins import with_builtins
from ssdsl.plan.statements.execute import execute
from ssdsl.plan.statements.use import NoSuchLibrary, NotInFile
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import Diagnostic, PlanError

MOST_MISTAKES = 20
NAMING = (UnknownName, WrongArguments, NoSuchPath, NoSuchKind, NoSuchDimension, NoSuchAxis, NoSuchLibrary, NotInFile)
MOST_READINGS = 9  # one more if it changes types, and for each index of which it names parts


class Reading(Record):
    """A plan, with the script and the context that it was read from."""

    plan: Plan
    script: nodes.Script
    context: Context
    beside: tuple[Diagnostic, ...]  # a warning about operators that were put beside neighbours

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Warnings: things that the plan's author may not have meant."""
        facts, model = self.context.facts, self.context.model
        return (
            *self.beside,
            *round_trips(facts, model),
            *never_used(self.script),
            *warnings(facts, model, self.script.span.source),
        )


Overrides = Mapping[str, int]


def read_plan(
    script: nodes.Script,
    model: ModelIndex,
    overrides: Overrides | None = None,
    folder: Path | None = None,
    most: int = MOST_MISTAKES,
    orders: bool = True,
) -> Reading:
    """Reads a script for a model. `folder` is where `use "file.ssp"` looks. Raises PlanError with all independent
    mistakes, and stops looking at `most` of them. Without `orders`, statements about order are skipped, which is
    faster."""
    ctx, mistakes = _carried_out(script, model, overrides, folder, most, orders)
    mistakes = [*unknown_params(script, ctx.overrides), *mistakes]
    beside = [] if mistakes else place_beside(ctx.facts, ctx.model, script.span.source)
    mistakes = mistakes or check(ctx.facts, ctx.model, script.span.source)
    if mistakes:
        raise PlanError(*mistakes[:MOST_MISTAKES])
    return Reading(plan_of(ctx), script, ctx, tuple(beside))


def interpret_all(
    script: nodes.Script, graph: Graph, overrides: Overrides | None = None, folder: Path | None = None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """The plan of a script for a model, and its warnings. Raises PlanError."""
    reading = read_plan(script, index_model(graph), overrides, folder)
    return reading.plan, reading.warnings()


def interpret_part(
    script: nodes.Script, model: ModelIndex, overrides: Overrides | None = None, folder: Path | None = None
) -> Context:
    """The context with the names of a script that need not be a whole plan yet. Raises PlanError."""
    ctx, mistakes = _carried_out(script, model, overrides, folder)
    if mistakes:
        raise PlanError(*mistakes[:MOST_MISTAKES])
    return ctx


def context_without_errors(
    script: nodes.Script, model: ModelIndex, overrides: Overrides | None = None, folder: Path | None = None
) -> Context:
    """The facts of all statements that can be carried out, and the files that these use; mistakes in the others are
    ignored."""
    return _carried_out(script, model, overrides, folder)[0]


def read_recovered(
    found: Recovered, model: ModelIndex, overrides: Overrides | None = None, folder: Path | None = None
) -> tuple[Context, tuple[Diagnostic, ...]]:
    """The facts of all statements that parse and can be carried out, and all mistakes, in the order of the text.

    Of a text with mistakes of syntax only those are added that the statements which are left out cannot have caused:
    wrong names, paths and arguments, where no word of these statements takes part.
    """
    ctx, mistakes = _carried_out(found.script, model, overrides, folder, unread=found.words)
    if found.mistakes:
        named = (m for m in mistakes if isinstance(m, NAMING))
        known = (m for m in named if m.span is not None and m.span.text not in found.words)
        return ctx, in_order(*found.mistakes, *known)
    mistakes = [*unknown_params(found.script, ctx.overrides), *mistakes]
    return ctx, in_order(*(mistakes or check(ctx.facts, ctx.model, found.script.span.source)))


def plan_of(ctx: Context) -> Plan:
    """The facts as a plan. Indices of one part are dropped, and axes are divided where digits of them are cut."""
    facts, model = ctx.facts, ctx.model
    known = ByIdentity[OpPlan, tuple[OpPlan, dict[int, OpPlan]]]()  # without indices of one part, and by kind of call
    operators: dict[str, OpPlan] = {}
    for (name, call), record in zip(model.calls.items(), facts.operators.at, strict=True):
        if record is not None:
            if (alike := known.get(record)) is None:
                alike = known[record] = _in_parts(record), {}
            cut, of_calls = alike
            if (finished := of_calls.get(call)) is None:
                finished = of_calls[call] = _finished(facts, model.operators[name], cut)
            operators[name] = finished
    plan = Plan(
        graph=model.graph,
        meshes=tuple(facts.meshes.values()),
        params=facts.params,
        operators=operators,
        orders=tuple(facts.orders),
        clocks=tuple(facts.clocks),
        state=StatePlan(
            shards=tuple(shard for shard in facts.shards if not shard.whole),
            matrices=tuple(shard for shard in facts.shards if shard.whole),
            prefetched=tuple(facts.prefetched),
            buckets=tuple(facts.buckets),
            kept=tuple(facts.kept),
            on_host=tuple(facts.on_host),
        ),
        altered=model.altered,
    )
    return on_outer_meshes(divide_axes(plan))


def _in_parts(record: OpPlan) -> OpPlan:
    """The record without indices of one part."""
    indices = tuple(i for i in record.indices if i.digit.parts > 1)
    return record if len(indices) == len(record.indices) else replace(record, indices=indices)


def _finished(facts: Facts, operator: Operator, record: OpPlan) -> OpPlan:
    """The record of an operator without those indices that it cannot have."""
    cut = record.indices
    left_out = (*_whole_in_time(facts, operator, record), *_apart(operator, cut))
    if not left_out:
        return record
    indices = tuple(_outside(i, cut, left_out) for i in cut if i not in left_out)
    return replace(record, indices=indices, whole=(*record.whole, *dict.fromkeys(left_out)))


def _outside(index: Index, indices: tuple[Index, ...], left_out: tuple[Index, ...]) -> Index:
    """The index with regions for the whole dimension, if indices outside of it are left out: [1, 2] of each third of 9
    are [3, 6]."""
    others = itertools.takewhile(lambda i: i is not index, indices)
    return index.of_all(math.prod(i.digit.parts for i in others if i in left_out and i.dim == index.dim))


def _apart(operator: Operator, indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """The indices whose parts are no runs in order, where a kernel gets the start of its part."""
    apart = (i for i in indices if not i.digit.are_runs)
    return tuple(i for i in apart if not placed_dims(operator).isdisjoint(i.dims))


def _whole_in_time(facts: Facts, operator: Operator, record: OpPlan) -> tuple[Index, ...]:
    """The indices in time that an operator cannot have: those along a dimension whose parts only devices combine, such
    as the classes of a loss; and those of running statistics, which change in place, where the parts are not runs of
    them.

    Statistics over the batch are left in: micro-batches could have statistics of their own, so the user must say which
    are meant.
    """
    if (place := record.place) is None:
        return ()
    axes = dict(facts.meshes[place.mesh].axes).keys() - {axis for axis, _ in place.fixed}
    batch = operator.inputs[0].axes[0] if operator.kind == "batch_norm" else ()
    running = [axis for o in operator.inputs if o.value in operator.statistics for axis in o.axes]
    apart = {dim for axis in running for dim in axis[1:]}
    in_time = (i for i in record.indices if i.name not in axes)
    return tuple(i for i in in_time if i.dim in apart or (operator.dims[i.dim].combined and i.dim not in batch))


def unknown_params(script: nodes.Script, overrides: Mapping[str, int]) -> list[Diagnostic]:
    """The mistakes of `--set` with names that the plan does not have."""
    params = script.params
    others = {name.partition("@")[0]: (name, value) for name, value in overrides.items() if name not in params}
    known = script.numbers if others else params  # choices are found by a walk of the whole text
    return [UnknownParam(None, *said, known) for name, said in others.items() if name not in known]


def _carried_out(
    script: nodes.Script,
    model: ModelIndex,
    overrides: Overrides | None,
    folder: Path | None,
    most: int = MOST_MISTAKES,
    orders: bool = True,
    unread: frozenset[str] = frozenset(),
) -> tuple[Context, list[Diagnostic]]:
    """The context after all statements, and the mistakes. `unread` are words of statements that do not parse, whose
    uses are not reported.

    Statements may change the model, and may name parts of an index: the script is then read again, for the changed
    model, or one in which these parts are operators of their own.
    """
    for _ in range(MOST_READINGS):
        ctx, mistakes = _read(script, model, overrides, folder, most, orders, unread)
        changes = altered_by if is_altered(ctx.facts) and model.altered is None else separated
        if changes is separated and not ctx.facts.named_parts:
            break
        try:
            model = changes(model, ctx.facts)
        except PlanError as error:
            return ctx, [*error.diagnostics, *mistakes]
    return ctx, mistakes


def _read(
    script: nodes.Script,
    model: ModelIndex,
    overrides: Overrides | None,
    folder: Path | None,
    most: int,
    orders: bool,
    unread: frozenset[str],
) -> tuple[Context, list[Diagnostic]]:
    """The context after all statements for a model, and the mistakes.

    An index has as many parts as the axis of its operators' mesh has devices, and a statement below may place these, or
    none, where they go beside their neighbours. If meshes differ in the axis, the script is then read once more, with
    the places of the first reading.
    """
    ctx = _begun(begin(model, overrides, folder, orders), unread)
    mistakes = _execute_all(ctx, script, most)
    if any(map(_may_follow, mistakes)):
        place_beside(ctx.facts, model)
        places = ((op.name, ctx.facts.of(op.name).place) for op in model.ordered(model.compute))
        later = {name: place.mesh for name, place in places if place is not None}
        ctx = _begun(begin(model, overrides, folder, orders, later), unread)
        mistakes = _execute_all(ctx, script, most)
    return ctx, mistakes


def _begun(ctx: Context, unread: frozenset[str]) -> Context:
    """The context in which the first statement runs."""
    ctx = with_builtins(ctx)
    ctx.facts.broken.update(unread)
    for word in unread:
        ctx.scope.outermost.give_up(word)
    return ctx


def _may_follow(mistake: Diagnostic) -> bool:
    """Whether a statement below may give what is missing: the place of an operator."""
    return isinstance(mistake, UnknownCount) and mistake.may_follow


def _execute_all(ctx: Context, script: nodes.Script, most: int = MOST_MISTAKES) -> list[Diagnostic]:
    """Carries out a plan's statements. If one fails, its names are marked as broken, and the next is carried out."""
    mistakes: list[Diagnostic] = []
    for statement in script.statements:
        try:
            execute(ctx, (statement,))
        except PlanError as e:
            mistakes += e.diagnostics  # none, where the cause has been reported already
            _give_up(ctx, statement)
        except RecursionError:
            mistakes.append(CallsTooDeep(statement.span))
            _give_up(ctx, statement)
        if len(mistakes) - sum(map(_may_follow, mistakes)) >= most:
            break
    return mistakes


def _give_up(ctx: Context, statement: nodes.Statement) -> None:
    """Marks the names that a failed statement would have bound, so that their uses are not reported."""
    for name in _bound(statement):
        ctx.scope.give_up(name)
    for mesh in (node for node in nodes.walk(statement) if isinstance(node, nodes.MeshStatement)):
        ctx.facts.broken.update(axis.name.text for axis in mesh.axes)


def _bound(statement: nodes.Statement) -> Iterator[str]:
    """The names that a statement binds in the scope in which it stands."""
    match statement:
        case (
            nodes.ParamStatement(name) | nodes.LetStatement(name) | nodes.MeshStatement(name) | nodes.DefStatement(name)
        ):
            yield name.text
        case nodes.ForStatement(_, (nodes.MeshStatement(name),), True):
            yield name.text
        case nodes.UseStatement(_, names):
            yield from (word.text for word in names)
        case nodes.IfStatement(branches, other):
            for s in (*(s for b in branches for s in b.body), *other):
                yield from _bound(s)
        case nodes.EitherStatement(branches):
            for s in (s for body in branches for s in body):
                yield from _bound(s)
        case _:
            pass
