"""The memory and the communication that each statement of a plan causes: a table of `ssdsl simulate`.

Memory is that of the fullest device at its peak, communication the time for which a device waits for collectives and
for transfers. A tensor belongs to the innermost `split` of the operator that makes it, a weight to the `split` that
cuts it; if no statement splits them, to the `assign` that places them. A collective belongs to the `split` along whose
axis it goes, a transfer to the `assign` that places its reader.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.codegen.origins import Origins
from ssdsl.ir.comm import Message, Signal
from ssdsl.ir.function import Function
from ssdsl.ir.layout import Shard
from ssdsl.ir.param import FlatParam, Param
from ssdsl.ir.program import Program, Role, Start, Wait
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Phase, State
from ssdsl.show.advice.exposed import CommunicationNames
from ssdsl.show.view import Column, ColumnKind, View
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.report import DeviceReport, Report
from ssdsl.simulate.timeline import Event, EventKind, Memory, MessageWait

COLUMNS = (
    Column("statement", fold=True, style="bold cyan"),
    Column("peak memory", ColumnKind.BYTES, key="peak_bytes"),
    Column("of the peak", ColumnKind.SHARE, key="peak_share"),
    Column("waits", ColumnKind.SECONDS, key="waits_s"),
    Column("of the step", ColumnKind.SHARE, key="step_share"),
)
STATE = {"weights": State.WEIGHTS, "gradients": State.GRADS, "optimizer": State.OPTIMIZER}
FREES = {EventKind(p) for p in Phase if p.of_weights}  # the events after which the activations of a task are freed
NAMED = 0.01  # of the step: a transfer that is waited for less is not named in a row of its own
Shares = defaultdict[str, float]


def by_line_view(program: Program, cluster: Cluster, report: Report) -> View:
    """A row per statement, those with the most memory first."""
    if not report.devices:
        return View("by line of the plan", COLUMNS, ())
    fullest = next(d for d in report.devices if d.peak_bytes == report.peak_bytes)
    lines = _Lines(program, cluster, report)
    waiting = max(report.devices, key=lambda device: in_collectives_s(device) + lines.held_up_s(device))
    held, waits = lines.memory(fullest), lines.communication(waiting)
    names = sorted({**held, **waits}, key=lambda name: (-held.get(name, 0.0), -waits.get(name, 0.0), name))
    peak, step = fullest.peak_bytes or 1, report.step_s or 1.0
    rows = tuple(
        (name, round(held.get(name, 0)), held.get(name, 0) / peak, waits.get(name, 0.0), waits.get(name, 0) / step)
        for name in names
    )
    notes = (
        f"peak memory: of a device of {fullest.name}",
        f"waits: of a device of {waiting.name}, for collectives, and transfers to it or to a device it waits for",
        "a tensor counts for the innermost split that made it, a collective for the split into its axis,",
        "a transfer for the assign that places its reader",
    )
    return View("by line of the plan", COLUMNS, rows, notes)


def in_collectives_s(device: DeviceReport) -> float:
    """The exposed communication of a device, but for messages."""
    return sum(time_s for part, time_s in device.exposed_parts if part is not ExposedPart.MESSAGES)


@dataclass
class _Lines:
    """A simulated program, with look-ups by statement."""

    program: Program
    cluster: Cluster
    report: Report
    names: CommunicationNames = field(init=False)
    origins: Origins = field(init=False)
    facts: ProgramIndex = field(init=False)

    def __post_init__(self) -> None:
        self.names = CommunicationNames(self.program, self.cluster)
        self.origins, self.facts = self.names.origins, self.names.costs.facts
        self._makers = self.program.graph.by_name | self.program.graph.makers

    # -- memory --------------------------------------------------------------------------------------------------------

    def memory(self, device: DeviceReport) -> Shares:
        """The bytes of a device's peak by statement."""
        role = self._role(device)
        memory = next(m for m in self.report.timeline.memory if self._row(m.row) == device.name)
        found = Shares(float)
        for part, size in device.peak_parts:
            if part in STATE:
                shares = self._state(role, STATE[part])
            elif part == "activations":
                shares = self._activations(role, memory)
            else:
                shares = Shares(float)
            _add(found, shares or {f"({part})": 1.0}, size)
        return found

    def _state(self, role: Role, state: State) -> Shares:
        """Elements of this state on a device, by the statement that cuts or places it. Only trained tensors have state
        other than weights."""
        flats, found = {(w, f.submesh): f for f in self.program.flats_of(role) for w in f.weights}, Shares(float)
        for param in self.program.params_of(role):
            flat = flats.get((param.weight, param.submesh))
            if flat is not None and (axes := flat.sharded.of(state)):
                parts = flat.elements / flat.elements_over(axes)
                statement, elements = self._sharding(flat, state), param.elements / parts
            elif flat is not None or state is State.WEIGHTS:
                statement, elements = self._of_weight(param), param.elements
            else:
                continue
            found[statement] += elements
        return found

    def _sharding(self, flat: FlatParam, state: State) -> str:
        """The statement that cuts this state, or another state that this one follows, as gradients follow weights."""
        mine = (s for s in self.program.plan.state.shards if not s.weights.isdisjoint(flat.weights))
        spans = {s.state.stage: s.span for s in mine if s.state.stage >= state.stage}
        return self.origins.said(spans[min(spans)]) if spans else ""

    def _of_weight(self, param: Param) -> str:
        """The statement of the split that cuts the weight for its first reader, else of the assign that places the
        reader."""
        places = zip(param.submesh.axes, param.layout.places, strict=True)
        cut = {axis for (axis, _), place in places if isinstance(place, Shard)}
        readers = self.program.graph.readers.get(param.weight, ())
        spans = (i.span for o in readers for i in self.program.plan.of(o.name).indices if i.name in cut)
        return next((self.origins.said(span) for span in spans), "") or self._placed(readers)

    def _placed(self, operators: Iterable[Operator]) -> str:
        placements = (self.program.plan.of(o.name).place for o in operators)
        return next((self.origins.said(p.span) for p in placements if p is not None), "(the model)")

    def _activations(self, role: Role, memory: Memory) -> Shares:
        """The bytes of activations that wait for their backward at the peak, by the statement of the operator that made
        them."""
        activations, found = Activations(self.facts, Fusion(self.facts)), Shares(float)
        events = [e for e in self.report.timeline.events if e.row == memory.row]
        for function in self.program.functions_of(role):
            alive = self._alive(function, events, memory.peak_s)
            for storage, size in activations.storages(function).items() if alive else ():
                maker = self._makers.get(storage.split(" ")[0].partition("@")[0])  # `x@1`, or `conv padded`
                statement = self._innermost(maker) if maker is not None else "(inputs of the model)"
                found[statement] += alive * size
        return found

    def _alive(self, function: Function, events: list[Event], time: float) -> int:
        """The number of a function's tasks whose last forward has begun and whose backward has not ended."""
        own = [e for e in events if e.function == function.number]
        begun = sum(e.kind is EventKind(function.keeps) and e.start_s <= time for e in own)
        return max(0, begun - sum(e.kind in FREES and e.end_s <= time for e in own))

    def _innermost(self, operator: Operator) -> str:
        indices = [i for i in self.program.plan.of(operator.name).indices if i.digit.parts > 1]
        return self.origins.said(indices[-1].span) if indices else self._placed([operator])

    # -- communication -------------------------------------------------------------------------------------------------

    def communication(self, device: DeviceReport) -> Shares:
        """The seconds of a step for which tasks and the optimizer wait for collectives and transfers, by statement."""
        role, found = self._role(device), Shares(float)
        for wait in self.report.timeline.exposed:
            if self._row(wait.row) == device.name and not isinstance(wait.action, Start | Wait):
                for name, share in self.names.shares(wait.action, role):
                    found[name.statement or "(no statement)"] += share * wait.time_s
        for statement, time_s in self._transfers(device).items():
            found[statement or "(no statement)"] += time_s
        return found

    def held_up_s(self, device: DeviceReport) -> float:
        """The seconds for which a device waits for transfers."""
        return sum(wait.time_s for wait in self._waits(device))

    def _waits(self, device: DeviceReport) -> list[MessageWait]:
        return [wait for wait in self.report.timeline.waits if self._row(wait.row) == device.name]

    # -- transfers -----------------------------------------------------------------------------------------------------

    def _transfers(self, device: DeviceReport) -> Shares:
        """The seconds for which a device waits for transfers, by statement: for a value and its gradient the `assign`
        that places the reader on other devices, for a signal the `order`. A transfer that holds up much of the step has
        an entry of its own, `STATEMENT; TRANSFER`."""
        found: dict[str, Shares] = {}
        for wait in self._waits(device):
            message = self.program.messages[wait.message]
            of_statement = found.setdefault(self.names.statement(message), Shares(float))
            of_statement[self._called(message, wait.gradient)] += wait.time_s
        rows = Shares(float)
        for statement, transfers in found.items():
            for name, time_s in transfers.items():
                is_long = time_s >= NAMED * self.report.step_s
                rows[f"{statement or '(no statement)'}; {name}" if is_long else statement] += time_s
        return rows

    def _called(self, message: Message, gradient: bool) -> str:
        """The words for a transfer: `transfer of h.3 add from gpus[pp = 0] to gpus[pp = 1]`."""
        source, target = message.ends(gradient)
        if isinstance(message, Signal):
            return f"signal from {source} to {target}"
        of = "gradient of " if gradient else ""
        return f"transfer of {of}{self.origins.value(message.value)} from {source} to {target}"

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _role(self, device: DeviceReport) -> Role:
        return next(r for r in self.program.roles if r.name == device.name)

    def _row(self, number: int) -> str:
        return self.report.timeline.rows[number].name


def _add(found: Shares, shares: Mapping[str, float], amount: float) -> None:
    """Adds an amount, divided in proportion to the shares. Without a statement it is added as "(no statement)"."""
    if not amount:
        return
    total = sum(shares.values())
    for name, share in shares.items() if total else {"": 1.0}.items():
        name = name or "(no statement)"
        found[name] += amount * share / total if total else amount
