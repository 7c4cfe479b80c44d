"""Says in words what statements did: a line for each new name of a plan, and for its new facts, with their numbers.

For example `split 12 operators by batch into 2 parts, dp, over gpus`.
"""

from collections.abc import Callable, Iterable, Iterator

from ssdsl.assist.describe import describe, devices_text
from ssdsl.assist.reading import DraftReading
from ssdsl.lang.nodes import LetStatement
from ssdsl.lang.suggest import counted, joined, listed
from ssdsl.plan.context import Context
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import mesh_size
from ssdsl.plan.hints.in_time import is_in_time, meshes_of
from ssdsl.plan.plan import NOTHING, Index, OpPlan, State
from ssdsl.plan.values import Devices, PlanFunction

MOST_LINES = 8  # of one kind; a ninth is shown as well, instead of `... and 1 more`
STATES = {State.WEIGHTS: "{}", State.GRADS: "the gradients of {}", State.OPTIMIZER: "the optimizer state of {}"}


def changes(before: DraftReading, after: DraftReading) -> tuple[str, ...]:
    """The lines for what `after` has and `before` has not: new names first, then new facts kind by kind."""
    old, new = before.context, after.context
    lines: list[str] = []
    for kind in KINDS:
        lines += _shortened(list(kind(old, new)))
    return (*_params(old, new), *_meshes(old, new), *_names(before.context.scope, after), *lines)


def _shortened(lines: list[str]) -> list[str]:
    left = len(lines) - MOST_LINES
    return lines if left <= 1 else [*lines[:MOST_LINES], f"... and {left} more"]


def _params(old: Context, new: Context) -> Iterator[str]:
    for name, value in new.facts.params.items():
        if name not in old.facts.params:
            yield f"param {name} = {value}{', from --set' if name in new.overrides else ''}"


def _names(old: Scope, after: DraftReading) -> Iterator[str]:
    """The new names of `let`, `def` and `use`; for a function of another file, the file as well."""
    scope = after.context.scope
    for name, value in scope.values.items():
        if name in old.values or name in after.context.facts.params or value == Devices(name):
            continue  # old, or told by `_params` or `_meshes`
        if not isinstance(value, PlanFunction):
            yield f"let {name}: {describe(after.context, value)}"
            continue
        written = f"{name}({', '.join(value.formals)})"
        source = value.node.span.source  # the file that defines the function; a `use` binds it in another one
        if source == scope.places[name].source:
            word = "let" if isinstance(value.node, LetStatement) else "def"
            yield f"{word} {written}: {describe(after.context, value)}"
        else:
            yield f"use {written}: a function of {source.name}"


def _meshes(old: Context, new: Context) -> Iterator[str]:
    for mesh in new.facts.meshes.values():
        if mesh.name not in old.facts.meshes:
            axes = ", ".join(f"{axis} = {size}" for axis, size in mesh.axes)
            yield f"mesh {mesh.name}: {counted(mesh_size(mesh), 'device')} ({axes})"


def _dims(old: Context, new: Context) -> Iterator[str]:
    for name, classes in new.facts.aliases.items():
        if name not in old.facts.aliases:
            same = dict.fromkeys(new.model.graph.dim_names.get(c, "") for c in sorted(classes))
            yield f"dim {name}: a further name of {listed(same)}"


def _splits(old: Context, new: Context) -> Iterator[str]:
    """A line for each kind of new cut: index, dimension, number of parts, regions, and devices or time."""
    groups: dict[tuple[object, ...], list[str]] = {}
    examples: dict[tuple[object, ...], Index] = {}
    for name, index in _indices(new):
        if name in old.model.operators and not old.facts.index(name, index.name):
            dimension = new.model.operators[name].dims[index.dim].name.removesuffix(".0")
            key: tuple[object, ...] = (index.name, dimension, index.digit, _runs(new, name, index))
            groups.setdefault(key, []).append(name)
            examples.setdefault(key, index)
    for key, names in groups.items():
        index = examples[key]
        sizes = f" ({joined(list(map(str, lengths)), 'and')})" if (lengths := index.digit.sizes) else ""
        count = _operators(new, names)
        yield f"split {count} by {key[1]} into {counted(index.digit.parts, 'part')}{sizes}, {index.name}{key[-1]}"


def _runs(ctx: Context, operator: str, index: Index) -> str:
    """Whether the parts run over devices or in time; empty if no mesh is declared yet."""
    if not ctx.facts.meshes:
        return ""
    if is_in_time(ctx.facts, operator, index):
        return ", in time"
    return f", over {joined([m.name for m in meshes_of(ctx.facts, operator) if index.name in dict(m.axes)], 'and')}"


def _indices(ctx: Context) -> Iterator[tuple[str, Index]]:
    for name in ctx.model.operators:
        for index in ctx.facts.of(name).indices:
            yield name, index


def _shards(old: Context, new: Context) -> Iterator[str]:
    for shard in new.facts.shards[len(old.facts.shards) :]:
        what = STATES[shard.state].format(counted(len(shard.weights), "weight"))
        yield f"split {what} by row over {joined(list(shard.axes), 'and')}"


def _placements(old: Context, new: Context) -> Iterator[str]:
    groups: dict[Devices, list[str]] = {}
    added = new.model.added - old.model.added
    for name in (name for name in new.model.operators if name not in added):
        placement = new.facts.of(name).place
        if placement is not None and _before(old, name).place is None:
            groups.setdefault(Devices(placement.mesh, placement.fixed), []).append(name)
    for devices, names in groups.items():
        yield f"assigned {_operators(new, names)} to {devices_text(new, devices)}"


def _orders(old: Context, new: Context) -> Iterator[str]:
    if count := len(new.facts.orders) - len(old.facts.orders):
        yield f"ordered {counted(count, 'pair')} of tasks"
    for clock in new.facts.clocks[len(old.facts.clocks) :]:
        yield f"sorted {counted(len(clock.rows), 'task')} by clock"


def _recomputes(old: Context, new: Context) -> Iterator[str]:
    if names := _marked(old, new, "checkpoint"):
        marked = ((new.model.operators[name], new.facts.of(name).checkpoint) for name in names)
        count = len({(new.model.layers[operator.path], mark) for operator, mark in marked})
        yield f"recompute {_operators(new, names)} in backward, in {counted(count, 'checkpoint')}"


def _gathers(old: Context, new: Context) -> Iterator[str]:
    if names := _marked(old, new, "regathers"):
        yield f"what {_operators(new, names)} gather is gathered again in backward"


def _prefetches(old: Context, new: Context) -> Iterator[str]:
    if names := _marked(old, new, "ahead"):
        yield f"prefetched what {_operators(new, names)} receive"
    for stated in new.facts.prefetched[len(old.facts.prefetched) :]:
        yield f"{counted(len(stated.weights), 'weight')} gathered ahead by {stated.value}"
    for bucket in new.facts.buckets[len(old.facts.buckets) :]:
        yield f"gradients of {counted(len(bucket.weights), 'weight')} in buckets of {bucket.value} MB"
    for kept in new.facts.kept[len(old.facts.kept) :]:
        yield f"{counted(len(kept.weights), 'weight')} kept through {kept.through or 'a step'}"


def _on_host(old: Context, new: Context) -> Iterator[str]:
    for stated in new.facts.on_host[len(old.facts.on_host) :]:
        if stated.state is State.WEIGHTS:
            yield f"{counted(len(stated.weights), 'weight')} and the optimizer's state of them lie on the host"
        else:
            yield f"the optimizer's state of {counted(len(stated.weights), 'weight')} lies on the host"
    if names := _marked(old, new, "offload"):
        yield f"what backward keeps of {_operators(new, names)} lies on the host"


def _precisions(old: Context, new: Context) -> Iterator[str]:
    for stated in new.facts.precisions[len(old.facts.precisions) :]:
        yield f"{_operators(new, stated.operators)} compute in {stated.dtype}"


def _compressions(old: Context, new: Context) -> Iterator[str]:
    for stated in new.facts.compressions[len(old.facts.compressions) :]:
        yield f"what {_operators(new, stated.operators)} pass on is compressed along {stated.dim} by {stated.how}"


def _choices(old: Context, new: Context) -> Iterator[str]:
    for name, choice in new.facts.choices.items():
        if name not in old.facts.choices:
            own = "the first branch" if name.startswith("either:") else choice.own
            yield f"{name}: {own}, in {counted(len(choice.turns), 'turn')}; a search tries the others"


def _before(old: Context, operator: str) -> OpPlan:
    """The earlier record of an operator; `NOTHING` if the model has it only now, as a part that is named, or
    behind a statement that changes the model."""
    return old.facts.of(operator) if operator in old.model.operators else NOTHING


def _marked(old: Context, new: Context, mark: str) -> set[str]:
    """The operators that were newly given a mark."""
    records = new.facts.operators.items()
    return {name for name, record in records if getattr(record, mark) and not getattr(_before(old, name), mark)}


def _operators(ctx: Context, names: Iterable[str]) -> str:
    found = frozenset(names)
    return counted(len(ctx.model.only_compute(found)) or len(found), "operator")


KINDS: tuple[Callable[[Context, Context], Iterator[str]], ...] = (
    _dims,
    _splits,
    _shards,
    _placements,
    _orders,
    _recomputes,
    _gathers,
    _prefetches,
    _on_host,
    _precisions,
    _compressions,
    _choices,
)
