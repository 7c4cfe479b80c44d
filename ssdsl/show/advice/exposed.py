"""The largest exposed communication of a step: what a device waits for, and why it is hidden behind nothing.

A row is a collective or a message, its repeated layers together, on the device that waits longest for it. What a
change of the plan would do is known when it has been tried: `hides.py` does that.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.analyse.collectives import OfGather, TaskCollective, of_action, of_once, of_travel
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.codegen.origins import Origins
from ssdsl.ir.comm import Message, Signal, functions_of
from ssdsl.ir.function import Function
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import (
    Compute,
    FlatAction,
    Free,
    GatherParam,
    OnFlat,
    Program,
    Role,
    Start,
    Traced,
    Travel,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.uses import InstrPlace
from ssdsl.plan.paths import starred
from ssdsl.plan.plan import Phase
from ssdsl.record import Record, replace
from ssdsl.show.tables.communication import Labelled, called, gathered, phase_word
from ssdsl.show.view import Column, ColumnKind, View
from ssdsl.simulate.exposed import Why
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.roofline import Roofline
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import ExposedWait

COLUMNS = (
    Column("communication", fold=True, style="bold cyan"),
    Column("of", ColumnKind.PATH),
    Column("exposed", ColumnKind.SECONDS, key="exposed_s"),
    Column("share", ColumnKind.SHARE, key="step_share"),
    Column("why", fold=True),
    Column("statement", fold=True, style="green"),
    Column("on", fold=True, drop=1),
)
MOST = 8  # rows
LEAST = 0.0005  # of the step: what is exposed for less has no row


class CommunicationName(Record):
    """Communication in words, as in `show comm`: `all_reduce`, `forward`, of `h.* attn`, on some devices; and the
    statement of the plan behind it. Names of repeated layers are equal."""

    kind: str
    when: str
    of: str
    on: str
    statement: str


class ExposedRow(Record):
    """What a device of a role waits for in a step, and why."""

    name: CommunicationName
    why: Why
    reason: str  # in words, with the statement or the number behind it
    role: str
    time_s: float


def exposed_view(report: Report, rows: Sequence[ExposedRow], helps: Sequence[str] = ()) -> View:
    """A row for each of the largest, and a note for each change that helps."""
    step = report.step_s or 1.0
    large = [row for row in rows if row.time_s >= LEAST * step]
    cells = tuple(
        (
            f"{row.name.kind}, {row.name.when}",
            row.name.of,
            row.time_s,
            row.time_s / step,
            row.reason,
            row.name.statement or "(no statement)",
            row.role,
        )
        for row in large[:MOST]
    )
    notes = (
        ["seconds of a step in which a device has nothing else to run, on the one that waits longest"] if cells else []
    )
    more = [f"{len(large) - MOST} more rows are smaller"] if len(large) > MOST else []
    short = f"devices wait for communication, but for each less than {LEAST:.2%} of the step"
    none = [] if cells else [short if rows else "no device waits for communication"]
    return View("exposed communication", COLUMNS, cells, (*notes, *more, *none, *helps))


def exposed_rows(program: Program, cluster: Cluster, report: Report) -> list[ExposedRow]:
    """What devices wait for, the longest first."""
    names, timeline = CommunicationNames(program, cluster), report.timeline
    found: dict[tuple[CommunicationName, Why, str], dict[int, float]] = {}
    for name, wait, seconds in _waits(names, report):
        key = replace(name, on=""), wait.why, names.reason(wait.action, wait.why)
        found.setdefault(key, defaultdict(float))[wait.row] += seconds
    rows = []
    for (name, why, reason), by_row in found.items():
        time_s, row = max((time_s, -row) for row, time_s in by_row.items())
        rows.append(ExposedRow(name, why, reason, timeline.rows[-row].name, time_s))
    return sorted(rows, key=lambda row: -row.time_s)


def exposed_on(program: Program, cluster: Cluster, report: Report) -> dict[tuple[str, str, str, str], float]:
    """The seconds for which a device waits that waits longest, for the rows of `show comm`."""
    found: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for name, wait, seconds in _waits(CommunicationNames(program, cluster), report):
        by_row = found.setdefault((name.kind, name.when, name.of, name.on), defaultdict(float))
        by_row[wait.row] += seconds
    return {key: max(by_row.values()) for key, by_row in found.items()}


def _waits(names: "CommunicationNames", report: Report) -> Iterator[tuple["CommunicationName", ExposedWait, float]]:
    """Yields what each row waits for, with its seconds."""
    roles, timeline = {role.name: role for role in names.program.roles}, report.timeline
    for wait in timeline.exposed:
        for name, share in names.shares(wait.action, roles[timeline.rows[wait.row].name]):
            yield name, wait, share * wait.time_s


@dataclass
class CommunicationNames:
    """Names for what the actions of a program communicate."""

    program: Program
    cluster: Cluster
    origins: Origins = field(init=False)
    labels: Labelled = field(init=False)
    costs: Roofline = field(init=False)

    def __post_init__(self) -> None:
        facts = ProgramIndex.on(self.program, self.cluster)
        self.origins, self.labels = Origins(self.program), Labelled(self.program)
        self.costs = Roofline(facts, self.cluster, Fusion(facts))

    def shares(self, action: Traced, role: Role) -> list[tuple[CommunicationName, float]]:
        """The names of what an action communicates, each with its share of the time that is exposed."""
        found = [*self._parts(action, role)]
        total = sum(seconds for _, seconds in found)
        if not total:
            name = found[0][0] if found else CommunicationName("communication", "in the step", "", "", "")
            return [(name, 1.0)]
        return [(name, seconds / total) for name, seconds in found]

    def _parts(self, action: Traced, role: Role) -> Iterator[tuple[CommunicationName, float]]:
        match action:
            case Compute():
                function = self.program.functions[action.function]
                for found, seconds in self.costs.exposed(action, role):
                    yield self._of_task(function, action.phase, found), seconds
            case Start() | Wait():
                yield self.of_message(self.program.messages[action.message], action.gradient), 1.0
            case Travel():
                function = self.program.functions[action.function]
                phase = Phase.BACKWARD if action.gradient else Phase.FORWARD
                place = function.uses.makers[function.outputs[action.output].name]
                for call in of_travel(function, action.output, gradient=action.gradient):
                    cost = self.costs.network.collective(call, function.submesh)
                    yield self._of_task(function, phase, TaskCollective(call, place)), cost.time_s
            case OnFlat():
                yield from self._of_flats(action, self.program.flats[action.flat])
            case Update() | Free():
                yield CommunicationName("all_reduce", "gradients", "", "", ""), 1.0
            case _:
                assert_never(action)

    def _of_flats(self, action: FlatAction, flat: FlatParam) -> Iterator[tuple[CommunicationName, float]]:
        """The collectives of an action. A role that awaits a reduction waits for all of it, and for the sum over the
        copies of a tied weight."""
        state, awaits = self.costs.facts.state, isinstance(action, WaitReduce)
        when = "weights" if isinstance(action, GatherParam) else "gradients"
        for call in of_once(flat, state) if awaits else of_action(action, flat, state):
            yield self._of_flat(call.kind, when, flat), self.costs.network.collective(call, flat.submesh).time_s
        if awaits and flat.completion.tied:
            yield self._of_flat("all_reduce", "gradients, tied", flat), self.costs.tie(flat).time_s

    def _of_task(self, function: Function, phase: Phase, found: TaskCollective) -> CommunicationName:
        when = phase_word(phase)
        match found.origin:
            case InstrPlace() as place:
                instr = function.at(place)
                of = self.labels.of_instr(instr)
                on, statement = str(function.submesh), self.origins.statement(instr)
                return CommunicationName(found.call.kind, when, starred(of), on, statement)
            case OfGather(flat=number):
                return self._of_flat(found.call.kind, gathered(found.call, when), self.program.flats[number])

    def _of_flat(self, kind: str, when: str, flat: FlatParam) -> CommunicationName:
        return CommunicationName(kind, when, starred(called(flat)), str(flat.submesh), self.origins.flat(flat))

    # -- messages ------------------------------------------------------------------------------------------------------

    def of_message(self, message: Message, gradient: bool) -> CommunicationName:
        """The name of a transfer or a signal."""
        when, statement = "backward" if gradient else "forward", self.statement(message)
        on = str(message.ends(gradient)[0])
        if isinstance(message, Signal):
            return CommunicationName("send", when, "an order", on, statement)
        move = message.backward if gradient else message.forward
        kind = "broadcast" if move is not None and move.broadcast else "send"
        return CommunicationName(kind, when, starred(self.labels.producer(message.value)), on, statement)

    def statement(self, message: Message) -> str:
        """The statement behind a message: for a value and its gradient the `assign` that places the reader on other
        devices, for a signal the `order`; empty if there is none."""
        if isinstance(message, Signal):
            orders = self.program.stated.items()
            spans = (span for task, spans in orders if task.function == message.consumer for span in spans)
            return next(map(self.origins.said, spans), "")
        ends = (self.program.functions[number] for number in (message.consumer, message.producer))
        return next(filter(None, map(self.origins.message, ends)), "")

    def reason(self, action: Traced, why: Why) -> str:
        """Why the communication of an action is exposed, with the `prefetch` that bounds its buffers, or their
        number."""
        if why is not Why.BUFFER or not isinstance(action, Wait):
            return str(why)
        reader = self.program.functions[functions_of(self.program.messages[action.message], action.gradient)[1]]
        operators = [op.operator for op in reader.operators()]
        marks = [mark for name in operators if (mark := self.program.plan.of(name).ahead) is not None]
        if marks:
            return f"a line of the plan: {self.origins.said(max(marks, key=lambda mark: mark.value).span)}"
        return f"{why} (it has {1 + self.program.plan.ahead(operators)})"
