"""Finds statements of a plan that have no effect on its program, or no other than more communication.

Each fact of a plan has the span of its statement. For each kind of statement, the program is searched for the spans
that it uses. A statement whose span is not found changes nothing, and gets a warning. A statement that only repeats
what holds anyway adds no fact, so its span does not occur here.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

from ssdsl.ir.comm import AllGather, Narrow, Transfer
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, names_along
from ssdsl.ir.layout import Shard
from ssdsl.ir.program import Members, Program
from ssdsl.ir.value import Name, Type
from ssdsl.lower.errors import CutInVain, IdleDevices, StateLeftWhole, path_of
from ssdsl.lower.functions.gather_again import is_extended, is_gathered
from ssdsl.model.graph import ITEMSIZE, Graph
from ssdsl.plan.errors.place import Idle, RelatesNothing, Unread
from ssdsl.plan.plan import Mark, Plan, State
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source, Span


def unread(plan: Plan, program: Program, source: Source) -> tuple[Diagnostic, ...]:
    """Warnings of statements in the plan's own text that have no effect on the program, or no other than more
    communication; of state that stays whole; and of devices that run nothing."""
    parts = (
        *(_statements(plan, program), _orders(plan, program), cut_in_vain(program)),
        *(_state(plan, program), _devices(program)),
    )
    found: Iterable[Diagnostic] = itertools.chain(*parts)
    return tuple(d for d in found if d.span is not None and d.span.source == source)


def _statements(plan: Plan, program: Program) -> Iterator[Unread]:
    for kind in KINDS:
        said, read = dict.fromkeys(kind.said(plan, program)), {*kind.read(plan, program)}
        yield from (Unread(span, kind.statement, kind.idle) for span in said if span not in read)


def _orders(plan: Plan, program: Program) -> Iterator[RelatesNothing]:
    read = {span for spans in program.stated.values() for span in spans}
    rows = {row.span for clock in plan.clocks for row in clock.rows}
    yield from (RelatesNothing(s, is_row=s in rows) for s in dict.fromkeys(plan.order_spans()) if s not in read)


# -- splits, recomputation, prefetching --------------------------------------------------------------------------------


_Spans = Callable[[Plan, Program], Iterable[Span]]


class _Kind(Record):
    """A kind of statement: `said` finds the spans of the plan's facts of that kind, `read` the spans that the program
    uses."""

    statement: str
    idle: Idle
    said: _Spans
    read: _Spans


def _split(plan: Plan, _: Program) -> Iterator[Span]:
    """Yields the spans of all indices, also of those that the operators lost because they cannot have them in time."""
    dims = {o.name: o.dims for o in plan.graph.operators}
    for name, record in plan.operators.items():
        yield from (i.span for i in record.indices)
        yield from (i.span for i in record.whole if not dims[name][i.dim].fixed)


def _in_parts(_: Plan, program: Program) -> Iterator[Span]:
    ops = (op for function in program.functions for op in function.operators())
    given = (instr for prologue in program.prologues for instr in prologue.body if isinstance(instr, OpPart))
    spans = (program.plan.said(op.operator, name) for op in (*ops, *given) for name in names_along(op.splits))
    yield from (span for span in spans if span is not None)


def _checkpoints(plan: Plan, _: Program) -> Iterator[Span]:
    marks = (mark for record in plan.operators.values() for mark in (record.checkpoint, record.within))
    yield from (mark.span for mark in marks if mark is not None)


def _recomputed(plan: Plan, program: Program) -> Iterator[Span]:
    sections = (s for f in program.functions for s in f.sections if s.recompute)
    inside = [i.operator for s in sections for i in s.body if isinstance(i, OpPart)]
    tasks = [op.operator for f in program.functions if f.again is not None for op in f.operators()]
    marks = (plan.of(name).checkpoint for name in (*inside, *tasks))
    around = (plan.of(name).within for name in tasks)
    yield from (mark.span for mark in (*marks, *around) if mark is not None)


def _asked(plan: Plan, _: Program) -> Iterator[Span]:
    """Yields the spans of `recompute OPS.gathers` for operators on several devices: one device gathers nothing."""
    wide = {m.name: {axis for axis, size in m.axes if size > 1} for m in plan.meshes}
    for record in plan.operators.values():
        if record.regathers and wide[record.home.mesh] - {axis for axis, _ in record.home.fixed}:
            yield record.regathers.span


def _gathered_again(plan: Plan, program: Program) -> Iterator[Span]:
    for section in (s for f in program.functions for s in f.sections):
        gathered = (i for i in section.body if isinstance(i, Conversion) and not is_extended(i))
        values = {i.result.name for i in gathered if i.again or (section.recompute and is_gathered(i))}
        readers = (i.operator for i in section.body if isinstance(i, OpPart) and not values.isdisjoint(i.reads))
        yield from (mark.span for o in readers if (mark := plan.of(o).regathers) is not None)


def _prefetched(plan: Plan, __: Program) -> Iterator[Span]:
    """Yields the spans of `prefetch` for operators of a stage, if there are several stages."""
    sizes = {m.name: dict(m.axes) for m in plan.meshes}
    for record in plan.operators.values():
        place = record.place
        if record.ahead and place and all(sizes[place.mesh][axis] > 1 for axis, _ in place.fixed):
            yield record.ahead.span


def _received(plan: Plan, program: Program) -> Iterator[Span]:
    yield from (mark.span for those in _numbers(plan, program) for mark in those)


def _most(plan: Plan, program: Program) -> Iterator[Span]:
    """Yields the spans of the largest `prefetch` in each function that receives: the others have no effect."""
    for those in _numbers(plan, program):
        yield from (mark.span for mark in those if mark.value == max(m.value for m in those))


def _ahead(plan: Plan, _: Program) -> Iterator[Span]:
    """Yields the spans of `prefetch OPS.weights`, but those that turn it off."""
    yield from (stated.span for stated in plan.state.prefetched if stated.value)


def _gathered_ahead(plan: Plan, program: Program) -> Iterator[Span]:
    gathered = {n for f in program.functions for group in (*f.ahead.forward, *f.ahead.backward) for n in group}
    weights = frozenset(w for n in gathered for w in program.flats[n].weights)
    yield from (stated.span for stated in plan.state.prefetched if not weights.isdisjoint(stated.weights))


def _bucketed(plan: Plan, _: Program) -> Iterator[Span]:
    yield from (stated.span for stated in plan.state.buckets)


def _reduced(plan: Plan, program: Program) -> Iterator[Span]:
    weights = frozenset(w for flat in program.flats if flat.completion.steps for w in flat.weights)
    yield from (stated.span for stated in plan.state.buckets if not weights.isdisjoint(stated.weights))


def _offloaded(plan: Plan, _: Program) -> Iterator[Span]:
    yield from (record.offload.span for record in plan.operators.values() if record.offload)


def _on_host(plan: Plan, program: Program) -> Iterator[Span]:
    sections = (s for f in program.functions for s in f.sections if s.on_host)
    marks = (plan.of(i.operator).offload for s in sections for i in s.body if isinstance(i, OpPart))
    yield from (mark.span for mark in marks if mark is not None)


def _kept(plan: Plan, _: Program) -> Iterator[Span]:
    yield from (stated.span for stated in plan.state.kept)


def _staying(plan: Plan, program: Program) -> Iterator[Span]:
    weights = frozenset(w for flat in program.flats if flat.kept is not None for w in flat.weights)
    yield from (stated.span for stated in plan.state.kept if not weights.isdisjoint(stated.weights))


def _by_matrix(plan: Plan, _: Program) -> Iterator[Span]:
    """Yields the spans of `by matrix` over more than one device."""
    sizes = {axis: size for mesh in plan.meshes for axis, size in mesh.axes}
    yield from (stated.span for stated in plan.state.matrices if any(sizes[axis] > 1 for axis in stated.axes))


def _at_home(plan: Plan, program: Program) -> Iterator[Span]:
    homes: dict[str, set[str]] = {}
    for flat in program.flats:
        for weight, home in zip(flat.weights, flat.homes, strict=False):
            homes.setdefault(weight, set()).update(home.axes if home is not None else ())
    for stated in plan.state.matrices:
        if any(not homes.get(weight, set()).isdisjoint(stated.axes) for weight in stated.weights):
            yield stated.span


def _numbers(plan: Plan, program: Program) -> Iterator[list[Mark]]:
    """Yields, for each message from other devices and direction, the `prefetch` marks of operators in the function that
    reads it."""
    members = Members(program.roles)
    for message in (m for m in program.messages if isinstance(m, Transfer)):
        back = [(True, message.producer)] if message.backward is not None else []
        for gradient, number in ((False, message.consumer), *back):
            sources, targets = members.ends(message, gradient)
            if not {*sources}.issuperset(targets):
                marks = (plan.of(op.operator).ahead for op in program.functions[number].operators())
                yield [mark for mark in marks if mark is not None]


KINDS = (
    _Kind("split", Idle.WHOLE, _split, _in_parts),
    _Kind("recompute", Idle.KEPT, _checkpoints, _recomputed),
    _Kind("recompute", Idle.GATHERED, _asked, _gathered_again),
    _Kind("prefetch", Idle.RECEIVED, _prefetched, _received),
    _Kind("prefetch", Idle.LESS, _received, _most),
    _Kind("prefetch", Idle.AHEAD, _ahead, _gathered_ahead),
    _Kind("bucket", Idle.ALONE, _bucketed, _reduced),
    _Kind("assign", Idle.NOT_KEPT, _offloaded, _on_host),
    _Kind("keep", Idle.NOT_GATHERED, _kept, _staying),
    _Kind("split", Idle.HOMELESS, _by_matrix, _at_home),
)


# -- state, and devices ------------------------------------------------------------------------------------------------


def _state(plan: Plan, program: Program) -> Iterator[StateLeftWhole]:
    """Yields a warning for each statement on state that leaves weights whole, though they are replicated along one of
    its axes."""
    cut = {(weight, flat.submesh) for flat in program.flats if flat.sharded.optimizer for weight in flat.weights}
    for shard, _ in dict.fromkeys((s, s.span) for s in plan.state.shards):
        those = [p for p in program.params if p.weight in shard.weights and p.cut_over(shard.axes)]
        left = [p for p in those if (p.weight, p.submesh) not in cut]
        frozen = {p.weight: None for p in left if not p.trained}
        tied = {p.weight: None for p in left if p.trained}
        if tied:
            yield StateLeftWhole(shard.span, shard.state.value, tuple(tied), is_trained=True)
        if frozen and (shard.state is State.WEIGHTS or len(left) == len(those)):
            yield StateLeftWhole(shard.span, shard.state.value, tuple(frozen), is_trained=False)


def _devices(program: Program) -> Iterator[IdleDevices]:
    """Yields a warning for each mesh with devices that run nothing."""
    for mesh in program.plan.meshes:
        idle = [r.submesh for r in program.roles if r.submesh.mesh == mesh and not r.actions]
        if idle:
            yield IdleDevices(mesh.span, mesh.name, sum(s.size for s in idle), str(idle[0]))


# -- cuts in vain ------------------------------------------------------------------------------------------------------


def cut_in_vain(program: Program) -> Iterator[CutInVain]:
    """A warning for each statement that cuts operators in vain along an axis, with what a device gathers of them."""
    found: dict[tuple[Span | None, str], list[tuple[str, int]]] = {}
    for function in program.functions:
        if gathers := [i for i in function.body() if isinstance(i, Conversion) and _gathers(i)]:
            flow = _Flow(function, program.graph, {name: var.type for name, var in function.variables().items()})
            for instr, (step,) in ((i, i.forward) for i in gathers):
                (axis,) = step.axes
                maker = flow.maker(instr.source)
                if isinstance(maker, OpPart) and flow.is_in_vain(maker, axis):
                    key = program.plan.said(maker.operator, axis), axis
                    size = step.elements * ITEMSIZE.get(instr.result.dtype, 4)
                    found.setdefault(key, []).append((maker.operator, size))
    for (span, axis), gathered in found.items():
        operator = program.graph.by_name[gathered[0][0]]
        named = f"{path_of(program.plan, operator)} {operator.kind}".strip()
        yield CutInVain(span, named, axis, len(gathered), sum(size for _, size in gathered))


def _gathers(instr: Conversion) -> bool:
    """Whether a conversion gathers parts along one axis, and does nothing else."""
    return len(instr.forward) == 1 and isinstance(instr.forward[0], AllGather) and len(instr.forward[0].axes) == 1


class _Flow(Record):
    """The way of parts through a function; `types` are those of its local values."""

    function: Function
    graph: Graph
    types: dict[Name, Type]

    def maker(self, name: Name) -> Instr | None:
        """The instruction that makes a value; None if it enters the function."""
        place = self.function.uses.makers.get(name)
        return None if place is None else self.function.at(place)

    def is_in_vain(self, first: OpPart, axis: str) -> bool:
        """Whether this operator, and all that are cut with it, only cut what is whole and is gathered behind them."""
        left, seen = [first], {first.operator}
        while left:
            op = left.pop()
            near = self._cut_with(op, axis)
            if near is None or self.graph.by_name[op.operator].row.contraction:
                return False
            left += [other for other in near if other.operator not in seen]
            seen |= {other.operator for other in near}
        return True

    def _cut_with(self, op: OpPart, axis: str) -> list[OpPart] | None:
        """The operators that hand this one its parts, or read its own. None if it gets parts otherwise than from whole
        values, or leaves them otherwise than to be gathered."""
        uses = self.function.uses
        ins = [self.maker(name) for name in op.reads if self._is_cut(name, axis)]
        outs = [self.function.at(place) for var in op.results for place in uses.readers.get(var.name, ())]
        if any(var.name in uses.outputs or not self._is_cut(var.name, axis) for var in op.results):
            return None
        near = [instr for instr in (*ins, *outs) if isinstance(instr, OpPart)]
        moved = [(instr, Narrow) for instr in ins] + [(instr, AllGather) for instr in outs]
        return near if all(isinstance(i, OpPart) or _only(i, step, axis) for i, step in moved) else None

    def _is_cut(self, name: Name, axis: str) -> bool:
        place = dict(zip((a for a, _ in self.function.submesh.axes), self.types[name].layout.places, strict=True))[axis]
        return isinstance(place, Shard)


def _only(instr: Instr | None, step: type[Narrow | AllGather], axis: str) -> bool:
    """Whether an instruction takes this step along the axis, and no other."""
    return isinstance(instr, Conversion) and [(type(s), s.axes) for s in instr.forward] == [(step, (axis,))]
