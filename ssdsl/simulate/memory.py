"""Memory by liveness: what each device holds at every moment of a step, and what its peak is made of.

Weights, optimizer state and, from a weight's first gradient on, gradients stay; activations live from a forward to its
backward (or to the gradients of weights, where the plan has those apart), received values until they are read. The
program's own overhead (torch, the allocator's gaps) is not in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ssdsl.lower.needs import Needs
from ssdsl.lower.schedule import Role, Schedule
from ssdsl.lower.units import WeightUnit, units_of
from ssdsl.plan.plan import Phase
from ssdsl.simulate.activations import Activations
from ssdsl.simulate.network import unit_bytes
from ssdsl.simulate.run import Ran
from ssdsl.simulate.timeline import Memory

MOMENTS = 2  # of AdamW, in the dtype of the weights
PARTS = ("weights", "gradients", "optimizer", "activations", "transfers", "workspace")


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes that come or go at a moment; what goes goes first."""

    time: float
    part: str
    size_bytes: int


def memories(
    schedule: Schedule, ran: list[list[Ran]], activations: Activations, capacity: list[int | None]
) -> list[Memory]:
    """The memory of one device of each role, which `ran` these tasks."""
    needs = Needs(schedule.blocks, schedule.transfers)
    found = []
    for r, (role, own) in enumerate(zip(schedule.roles, ran, strict=True)):
        changes = [*_state(schedule, role, own), *_activations(schedule, own, activations), *_transfers(own, needs)]
        found.append(_curve(r, changes, capacity[r]))
    return found


def _curve(row: int, changes: list[Change], capacity: int | None) -> Memory:
    held = dict.fromkeys(PARTS, 0)
    times: list[float] = []
    sizes: list[int] = []
    peak, peak_time, peak_parts = -1, 0.0, held.copy()
    total = 0
    for change in sorted(changes, key=lambda c: (c.time, c.size_bytes)):
        held[change.part] += change.size_bytes
        total += change.size_bytes
        if times and times[-1] == change.time:
            sizes[-1] = total
        else:
            times.append(change.time)
            sizes.append(total)
        if total > peak:
            peak, peak_time, peak_parts = total, change.time, held.copy()
    parts = tuple((p, n) for p, n in peak_parts.items() if n)
    return Memory(row, tuple(times), tuple(sizes), peak_time, max(peak, 0), parts, capacity)


# -- state -----------------------------------------------------------------------------------------------------------


def _state(schedule: Schedule, role: Role, ran: list[Ran]) -> Iterator[Change]:
    trained = 0
    for unit in units_of(schedule, role):
        size = unit_bytes(unit, schedule.graph)
        ways = prod(n for a, n in unit.homes[0].submesh.mesh.axes if a in unit.over)
        own = -(-size // ways)
        trained += size
        yield Change(0.0, "weights", own if unit.cut == "weights" else size)
        yield Change(0.0, "optimizer", MOMENTS * (own if unit.cut else size))
        first = _first_gradient(schedule, unit, ran)
        if first is not None:
            yield Change(first, "gradients", size if unit.cut in ("", "optimizer") else own)
    others = sum(
        h.shape.local(h.layout.digits()).numel * schedule.graph.values[h.weight].itemsize
        for h in schedule.homes
        if role.is_in(h.submesh)
    )
    yield Change(0.0, "weights", max(others - trained, 0))  # buffers, and weights that do not learn


def _first_gradient(schedule: Schedule, unit: WeightUnit, ran: list[Ran]) -> float | None:
    weights = {h.weight for h in unit.homes}
    backwards = (Phase.BACKWARD, Phase.WGRAD)
    starts = (
        x.start
        for x in ran
        if x.task.transfer is None
        and x.task.phase in backwards
        and not weights.isdisjoint(schedule.blocks[x.task.block].weights)
    )
    return min(starts, default=None)


# -- activations -----------------------------------------------------------------------------------------------------


def _activations(schedule: Schedule, ran: list[Ran], activations: Activations) -> Iterator[Change]:
    last_read = _last_reads(schedule, ran)
    for x in ran:
        if x.task.transfer is not None:
            continue
        block = schedule.blocks[x.task.block]
        kept = activations.of(block)
        match x.task.phase:
            case Phase.FORWARD if block.has_backward:
                yield Change(x.start, "activations", kept.size_bytes)
            case Phase.FORWARD:
                yield Change(x.start, "activations", kept.output_bytes)
                yield Change(last_read.get((block.number, x.task.coordinate), x.end), "activations", -kept.output_bytes)
            case Phase.BACKWARD:
                yield Change(x.end, "activations", -kept.size_bytes)
            case Phase.DGRAD:
                waits = kept.for_weights if block.weights else 0
                yield Change(x.end, "activations", waits - kept.size_bytes)
            case Phase.WGRAD:
                yield Change(x.end, "activations", -kept.for_weights)
        if x.task.phase in (Phase.BACKWARD, Phase.DGRAD):
            working = kept.again_bytes + kept.gradient_bytes
            yield Change(x.start, "workspace", working)
            yield Change(x.end, "workspace", -working)


def _last_reads(schedule: Schedule, ran: list[Ran]) -> dict[tuple[int, tuple[int, ...]], float]:
    """When the outputs of a block without backward were last read or sent, by its number and coordinate."""
    without = {b.number: [t.name for t in b.time] for b in schedule.blocks if not b.has_backward}
    found: dict[tuple[int, tuple[int, ...]], float] = {}

    def note(number: int, coordinate: tuple[int, ...], time: float) -> None:
        found[number, coordinate] = max(found.get((number, coordinate), 0.0), time)

    for x in ran:
        if x.task.transfer is not None and x.sends and x.task.phase is Phase.FORWARD and x.task.block in without:
            note(x.task.block, x.task.coordinate, x.end)
        elif x.task.transfer is None and x.task.phase is Phase.FORWARD:
            block = schedule.blocks[x.task.block]
            at = dict(zip((t.name for t in block.time), x.task.coordinate, strict=True))
            for given in block.inputs:
                names = without.get(given.producer)
                if names is not None and all(n in at for n in names):
                    note(given.producer, tuple(at[n] for n in names), x.end)
    return found


# -- transfers -------------------------------------------------------------------------------------------------------


def _transfers(ran: list[Ran], needs: Needs) -> Iterator[Change]:
    """A received value lies in its buffer until the task that reads it starts, a sent one until it is gone."""
    read = {key: x.start for x in ran if x.task.transfer is None for key in needs.of(x.task)}
    for x in ran:
        if x.task.transfer is None or not x.cost.messages:
            continue
        size = x.cost.messages[0].size_bytes
        key = (x.task.transfer, x.task.coordinate, x.task.phase is Phase.FORWARD)
        yield Change(x.start, "transfers", size)
        yield Change(x.end if x.sends else max(x.end, read.get(key, x.end)), "transfers", -size)
