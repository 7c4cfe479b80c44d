"""Checks whether a plan fits into the memory of a cluster's devices, and advises statements if it does not."""

import math
from collections import Counter
from collections.abc import Iterator

from ssdsl.ir.layout import Shard
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Program, Role
from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.lang.suggest import joined
from ssdsl.plan.plan import State
from ssdsl.record import Record
from ssdsl.show.errors import DeviceOutOfMemory, HostOutOfMemory, NearlyFull
from ssdsl.show.pattern import ranks
from ssdsl.show.view import size
from ssdsl.simulate.report import DeviceReport, Report
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source

NEARLY = 0.95
LEAST = 0.05  # of the peak: against less there is no advice
NAMED = 4  # roles and parts that a note names
SIZES = {2: "half as large", 4: "a quarter as large"}
STATE = ("weights", "gradients", "optimizer")
STAGES = (
    ("optimizer", State.OPTIMIZER),
    ("gradients", State.GRADS),
    ("weights", State.WEIGHTS),
)  # the stages of ZeRO: the part of the peak, and the state


def capacity(program: Program, source: Source, report: Report) -> tuple[Diagnostic, ...]:
    """An error if a role needs more than its devices have, else a warning if one is nearly full, else nothing.

    The message is about the fullest role; `source` is the plan's text.
    """
    if full := next((d for d in report.devices if d.host_bytes > (d.host_capacity_bytes or d.host_bytes)), None):
        stated, has = program.plan.host_span, size(full.host_capacity_bytes or 0)
        return (HostOutOfMemory(stated, full.name, size(full.host_bytes), report.cluster, has),)
    fullest = max(report.devices, key=lambda d: d.capacity_share or 0.0, default=None)
    if fullest is None or (share := fullest.capacity_share or 0.0) <= NEARLY:
        return ()
    role = next(r for r in program.roles if r.name == fullest.name)
    span = next(m.span for m in program.plan.meshes if m.name == role.submesh.mesh.name)
    held = fullest.capacity_bytes or 0
    where = f"{'rank' if len(fullest.ranks) == 1 else 'ranks'} {ranks(fullest.ranks)}"
    change = "\n".join(_Advice(program, source, role, fullest).lines()) or "choose a cluster whose devices have more"
    peak, has = size(fullest.peak_bytes), size(held)
    if share <= 1:
        return (NearlyFull(span, role.name, f"{share:.1%}", report.cluster, peak, has, where, _parts(fullest), change),)
    over = size(fullest.peak_bytes - held)
    found = DeviceOutOfMemory(
        span, role.name, peak, report.cluster, has, over, where, _parts(fullest), _others(report, fullest), change
    )
    return (found,)


def _parts(device: DeviceReport) -> str:
    """The parts of the peak, the largest first."""
    parts = sorted(device.peak_parts, key=lambda part: -part[1])
    shown = [f"{name} {size(n)} ({n / device.peak_bytes:.0%})" for name, n in parts[:NAMED]]
    return ", ".join(shown)


def _others(report: Report, fullest: DeviceReport) -> str:
    """The other roles that need too much."""
    over = [d for d in report.devices if d is not fullest and (d.capacity_share or 0.0) > 1]
    named = [f"`{d.name}` by {size(d.peak_bytes - (d.capacity_bytes or 0))}" for d in over[:NAMED]]
    more = [f"{len(over) - NAMED} more"] if len(over) > NAMED else []
    return f"too much need also {joined(named + more, 'and')}" if over else ""


# -- what would help ---------------------------------------------------------------------------------------------------


class _Advice(Record):
    """Statements that would reduce the memory of a role's devices."""

    program: Program
    source: Source
    role: Role
    device: DeviceReport

    def lines(self) -> list[str]:
        """The lines of advice; first those for the larger part, state or activations."""
        state = sum(n for name, n in self.device.peak_parts if name in STATE)
        relevant = state > LEAST * self.device.peak_bytes
        found = [
            (state, self._of_state() if relevant else iter(())),
            (self.device.peak_bytes - state, self._of_activations()),
        ]
        return [line for _, lines in sorted(found, key=lambda half: -half[0]) for line in lines]

    def _of_state(self) -> Iterator[str]:
        parts = dict(self.device.peak_parts)
        too_much = self.device.peak_bytes - (self.device.capacity_bytes or 0)
        axes, ways = self._replicas()
        flats = self.program.flats_of(self.role)
        words, saved = [], 0.0
        for part, state in STAGES:
            if ways > 1 and saved < too_much and not all(f.sharded.of(state) for f in flats):
                words.append(f"`split model.{state} by row into {', '.join(axes)}`")
                saved += parts.get(part, 0) * (1 - 1 / ways)
        if words:
            yield f"{joined(words, 'and')}: replicas share what each holds whole; about {size(saved)} less"
        wider = [text for text in map(self._wider, self._cutting()) if text]
        if wider:
            yield f"parts of the model on more devices: {' or '.join(wider)}"
        elif not words:
            yield "cut the weights: by `heads`, `ffn` and `vocab` (tensor_parallel), or into stages (pipeline)"

    def _replicas(self) -> tuple[tuple[str, ...], int]:
        """The axes along which devices hold copies of the largest flat parameter, and the number of copies."""
        flats = self.program.flats_of(self.role)
        largest = max(flats, key=lambda f: f.elements, default=None)
        if largest is None:
            return (), 1
        cut = self._cut(largest)
        found = [(a, n) for a, n in largest.submesh.axes if a not in cut]
        return tuple(a for a, _ in found), math.prod(n for _, n in found)

    def _cut(self, flat: FlatParam) -> set[str]:
        """The axes along which any weight of a flat parameter is cut."""
        params = [p for p in self.program.params if p.weight in flat.weights and p.submesh == flat.submesh]
        return {
            axis
            for p in params
            for (axis, _), place in zip(p.submesh.axes, p.layout.places, strict=True)
            if isinstance(place, Shard)
        }

    def _cutting(self) -> list[str]:
        """The axes of the mesh that spread the weights: those of stages, and those that cut weights."""
        cut = {a for flat in self.program.flats_of(self.role) for a in self._cut(flat)}
        fixed = [a for a, _ in self.role.submesh.fixed]
        return [a for a, _ in self.role.submesh.mesh.axes if a in fixed or a in cut]

    def _wider(self, axis: str) -> str:
        """`--set PARAM=N` that doubles the devices along an axis; empty if no param of the plan says how many they
        are."""
        for mesh in (node for node in nodes.walk(parse(self.source)) if isinstance(node, nodes.MeshStatement)):
            for keyed in mesh.axes:
                if mesh.name.text == self.role.submesh.mesh.name and keyed.name.text == axis:
                    return self._more(keyed.value)
        return ""

    def _more(self, e: nodes.Expr, times: int = 2) -> str:
        value = self.program.plan.params.get(e.text) if isinstance(e, nodes.NameExpression) else None
        return f"--set {e.text}={times * value}" if isinstance(e, nodes.NameExpression) and value is not None else ""

    def _of_activations(self) -> Iterator[str]:
        keeps = [f for f in self.program.functions_of(self.role) if not any(s.recompute for s in f.sections)]
        if keeps and (held := dict(self.device.peak_parts).get("activations", 0)):
            most = max(keeps, key=lambda f: sum(1 for _ in f.operators()))
            stage = "" if len(self.program.roles) == 1 else f", or the stage of `{most.submesh}` alone"
            kept = "little more than the inputs of blocks is kept"
            yield f"`recompute model`{stage}: of {size(held)} of activations {kept}"
        alive, micro_batches = self._in_flight()
        stages = sum(1 for role in self.program.roles if role.actions)
        if micro_batches > 1 and alive == micro_batches > stages > 1:
            yield f"`one_f_one_b(stage, M)` of `use pipeline`: it keeps {stages} micro-batches, not all {alive}"
        elif times := self._times():
            yield self._micro_batches(micro_batches, times)

    def _in_flight(self) -> tuple[int, int]:
        """The most micro-batches of a function that wait for their backward at once, and the number of all
        micro-batches."""
        most, all_ = 0, 1
        alive = Counter[int]()
        for task in self.role.computes():
            function = self.program.functions[task.function]
            all_ = max(all_, math.prod(t.parts for t in function.time))
            alive[task.function] += (task.phase is function.keeps) - task.phase.of_weights
            most = max(most, alive[task.function])
        return most, all_

    def _times(self) -> int:
        """The factor on the number of micro-batches that would free enough memory, a power of two; 0 if none is needed,
        or the batch cannot be halved."""
        parts = self.device.peak_parts
        state = sum(n for name, n in parts if name in STATE)
        room = max(1, (self.device.capacity_bytes or 0) - state)
        rows, times = self._rows(), 1
        while rows % (2 * times) == 0 and (self.device.peak_bytes - state) / times > room:
            times *= 2
        return times if times > 1 else 0

    def _rows(self) -> int:
        """The positions of the batch that a device computes at a time."""
        for operator in self.program.graph.operators:
            for at, dim in enumerate(operator.dims):
                if dim.name == "batch":
                    indices = self.program.plan.of(operator.name).indices
                    return dim.size // math.prod(i.digit.parts for i in indices if at in i.dims)
        return 1

    def _micro_batches(self, now: int, times: int) -> str:
        """The advice to have so many times as many micro-batches, by the plan's own param if it has one."""
        in_time = {t.name for f in self.program.functions for t in f.time}
        for split in (
            s for s in parse(self.source).statements if isinstance(s, nodes.SplitStatement) and s.dim.text == "batch"
        ):
            for cut in split.cuts:
                if cut.name.text in in_time and cut.count is not None and (text := self._more(cut.count, times)):
                    return f"{text}: micro-batches {SIZES.get(times, f'1/{times} as large')}"
        if now > 1:
            return f"{now * times} micro-batches, which are smaller"
        return f"`split model by batch into ..., m = {times}`: a part of the batch at a time, gradients are added up"
