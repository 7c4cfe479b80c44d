"""`ssdsl show PLAN comm`: the communication of each device in a step."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from ssdsl.analyse.collectives import (
    OfGather,
    SizedCollective,
    TaskCollective,
    of_homes,
    of_once,
    of_prologue,
    of_scatter,
    of_task,
    of_updated,
)
from ssdsl.analyse.gathers import NONE_STAY, Staying
from ssdsl.analyse.program_index import ProgramIndex, flat_bytes
from ssdsl.ir.comm import Message, Move, Transfer
from ssdsl.ir.function import Conversion, Function, Instr, Prologue, results_of
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import GatherParam, OnFlat, Program, ScatterGrads, StartReduce
from ssdsl.ir.uses import InstrPlace
from ssdsl.model.graph import ITEMSIZE
from ssdsl.plan.paths import starred
from ssdsl.plan.plan import Phase
from ssdsl.record import Record
from ssdsl.show.view import Column, ColumnKind, Value, View

COLUMNS = (
    Column("communication", style="bold cyan"),
    Column("over", style="green", fold=True),
    Column("when", fold=True),
    Column("of", ColumnKind.PATH),
    Column("on", fold=True, drop=1),
    Column("calls", ColumnKind.COUNT),
    Column("bytes", ColumnKind.BYTES),
)
EXPOSED = Column("exposed", ColumnKind.SECONDS, key="exposed_s")
Exposed = Mapping[tuple[str, str, str, str], float]  # by `communication`, `when`, `of` and `on`
SIGNAL_BYTES = 4  # one number


class Communication(Record):
    """Equal communication calls of each device of `on` in a step: how many calls, and how many bytes together.

    Bytes are those of the whole tensor: the sum of an all_reduce, the result of an all_gather, the input of a
    reduce_scatter. For sends they are the boxes of the device that sends most.
    """

    kind: str
    over: tuple[str, ...]
    when: str
    of: str
    on: Submesh
    calls: int
    size_bytes: int


def communication_view(program: Program, every: bool = False, exposed: Exposed | None = None) -> View:
    """A row per kind, axes and tensor; repeated layers share a row unless `every`. `exposed` are the seconds for which
    a device waits."""
    rows: dict[tuple[str, str, str, str, str], list[int]] = {}
    for c in communications(program):
        of = c.of if every else starred(c.of)
        sums = rows.setdefault((c.kind, ", ".join(c.over), c.when, of, str(c.on)), [0, 0])
        sums[0] += c.calls
        sums[1] += c.size_bytes
    note = () if rows else ("nothing is communicated",)
    notes = ("calls and bytes: of one device in a step; bytes of whole tensors, as PyTorch is given them", *note)
    title = f"communication of {program.graph.name}"
    cells: list[tuple[Value, ...]] = [(*key, n, size) for key, (n, size) in rows.items()]
    if exposed is None:
        return View(title, COLUMNS, tuple(cells), notes)
    waits = (exposed.get((kind, when, of, on), 0.0) for kind, _, when, of, on in rows)
    cells = [(*row, time_s) for row, time_s in zip(cells, waits, strict=True)]
    return View(
        title, (*COLUMNS, EXPOSED), tuple(cells), (*notes, "exposed: for which a device waits that waits longest")
    )


def communications(program: Program) -> Iterator[Communication]:
    """All communication of a step, once for each set of devices that do the same."""
    fold = Labelled(program)
    for prologue in program.prologues:
        yield from fold.of_prologue(prologue)
    for function in program.functions:
        yield from fold.of_function(function)
    for message in program.messages:
        yield from fold.of_message(message)
    for flat in program.flats:
        yield from fold.of_flat(flat)


@dataclass(slots=True)
class Labelled:
    """The communication of a program, with words for what it carries."""

    program: Program
    facts: ProgramIndex = field(init=False)
    producers: dict[str, str] = field(init=False)
    on_flats: dict[str, Counter[tuple[type, int]]] = field(default_factory=dict)  # actions, by the role's name

    def __post_init__(self) -> None:
        self.facts = ProgramIndex(self.program)
        operators = self.program.graph.operators
        plan = self.program.plan
        self.producers = {o.value: f"{plan.of(op.name).module(op)} {op.kind}" for op in operators for o in op.outputs}

    def producer(self, value: str) -> str:
        """The module and kind of the operator that computes a value, or the value's own name."""
        return self.producers.get(value, value)

    def of_prologue(self, prologue: Prologue) -> Iterator[Communication]:
        for origin, found in groupby(of_prologue(prologue), lambda c: c.origin):
            assert isinstance(origin, InstrPlace)
            yield from self.counted(
                _calls(found), "inputs", self.of_instr(prologue.body[origin.instr]), prologue.submesh, 1
            )

    def of_function(self, function: Function) -> Iterator[Communication]:
        for phase, stay, times in self._tasks(function):
            when = phase_word(phase)
            for origin, found in groupby(of_task(self.facts, function, phase, stay), lambda c: c.origin):
                match origin:
                    case InstrPlace():
                        of = self.of_instr(function.at(origin))
                        yield from self.counted(_calls(found), when, of, function.submesh, times)
                    case OfGather():
                        of = called(self.program.flats[origin.flat])
                        for call in _calls(found):
                            what = gathered(call, when)
                            yield from self.counted((call,), what, of, function.submesh, times)

    def _tasks(self, function: Function) -> Iterator[tuple[Phase, Staying, int]]:
        """Yields the phases of a function with the number of tasks in each: those for which unlike weights stay are
        told apart."""
        staying, times = self.facts.staying, math.prod(t.parts for t in function.time)
        stays = Counter((task.phase, stay) for task, stay in staying.items() if task.function == function.number)
        for phase in function.phases:
            own = {stay: count for (of, stay), count in stays.items() if of is phase}
            yield from ((phase, stay, count) for stay, count in own.items())
            if left := times - sum(own.values()):
                yield phase, NONE_STAY, left

    def of_instr(self, instr: Instr) -> str:
        """The operator whose result an instruction converts or computes."""
        match instr:
            case Conversion():
                return self.producer(instr.source.value)
            case _:
                return self.producer(next((var.name.value for var in results_of(instr)), ""))

    def of_message(self, message: Message) -> Iterator[Communication]:
        match message:
            case Transfer():
                times = math.prod(t.parts for t in message.time)
                size, of = ITEMSIZE.get(message.dtype, 4), self.producer(message.value)
                yield from _sent(message.forward, message, False, of, times, size)
                if message.backward is not None:
                    yield from _sent(message.backward, message, True, of, times, size)
            case _:
                yield from _sent(message.forward, message, False, "an order", 1, SIGNAL_BYTES)

    def of_flat(self, flat: FlatParam) -> Iterator[Communication]:
        """The gradient reductions as often as a role starts them, the sum over the copies of a tied weight, and the
        all-gather."""
        role = next((r for r in self.program.roles if r.is_in(flat.submesh)), None)
        if role is None:
            return
        if role.name not in self.on_flats:
            self.on_flats[role.name] = Counter((type(a), a.flat) for a in role.actions if isinstance(a, OnFlat))
        kinds, counts = (ScatterGrads, StartReduce, GatherParam), self.on_flats[role.name]
        scatters, reduces, gathers = (counts[kind, flat.number] for kind in kinds)
        of = called(flat)
        yield from self.counted(of_scatter(flat), "gradients", of, flat.submesh, scatters)
        yield from self.counted(of_once(flat), "gradients", of, flat.submesh, reduces)
        if flat.completion.tied:
            tied = SizedCollective("all_reduce", (), flat_bytes(flat, flat.sharded.optimizer))
            yield from self.counted((tied,), "gradients, tied", of, flat.submesh, 1)
        yield from self.counted(of_updated(flat), "weights", of, flat.submesh, gathers)
        yield from self.counted(of_homes(self.facts, flat), "update", of, flat.submesh, 1)

    def counted(
        self, found: Iterable[SizedCollective], when: str, of: str, on: Submesh, times: int
    ) -> Iterator[Communication]:
        """Collectives that a device calls `times` times, with equal ones counted together."""
        if times:
            for c, calls in Counter(found).items():
                yield Communication(c.kind, c.axes, when, of, on, calls * times, calls * times * c.size_bytes)


def phase_word(phase: Phase) -> str:
    """Forward, forward again, or backward and its halves."""
    return phase.word if phase.is_forward else "backward"


def _calls(found: Iterable[TaskCollective]) -> list[SizedCollective]:
    return [collective.call for collective in found]


def gathered(call: SizedCollective, when: str) -> str:
    """When weights are gathered for a section, or their gradients are reduced."""
    return f"weights, {when}" if call.kind == "all_gather" else "gradients"


def called(flat: FlatParam) -> str:
    """The name of a weight, or the common prefix of several."""
    if len(flat.weights) == 1:
        return flat.weights[0]
    paths = [w.split(".")[:-1] for w in flat.weights]
    shared = [a[0] for a in zip(*paths, strict=False) if len(set(a)) == 1]
    return f"{'.'.join(shared) or 'model'} ({len(flat.weights)} weights)"


def _sent(move: Move, message: Message, gradient: bool, of: str, times: int, itemsize: int) -> Iterator[Communication]:
    """The sends of the device that sends most; values that stay on a device are not sent, and broadcasts once."""
    source, target = message.ends(gradient)
    sent: Counter[tuple[int, ...]] = Counter()
    size: Counter[tuple[int, ...]] = Counter()
    leaving = [p for p in move.pieces if _place(source, move, p.source) != _place(target, move, p.target)]
    if move.broadcast:
        leaving = [*{(p.source, p.source_box): p for p in leaving}.values()]
    for piece in leaving:
        sent[piece.source] += 1
        size[piece.source] += math.prod(n for _, n in piece.source_box)
    if sent:
        most = max(sent, key=lambda at: (size[at], sent[at]))
        kind, when = "broadcast" if move.broadcast else "send", "backward" if gradient else "forward"
        calls, sizes = sent[most] * times, size[most] * times * itemsize
        yield Communication(kind, (f"to {target}",), when, of, source, calls, sizes)


def _place(submesh: Submesh, move: Move, at: tuple[int, ...]) -> tuple[object, ...]:
    """A device, without the coordinates on which both ends of the move agree."""
    free = [a for a, _ in submesh.axes if a not in move.aligned]
    held = {**dict(submesh.fixed), **dict(zip(free, at, strict=True))}
    return submesh.mesh.name, tuple(sorted((a, held.get(a, 0)) for a, _ in submesh.mesh.axes))
