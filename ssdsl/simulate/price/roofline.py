"""Costs from first principles: operators on a device's roofline, communication on a cluster's links.

A kernel takes the longer of its arithmetic and its memory traffic: the roofline of Williams, Waterman and Patterson
(2009), with the fractions of the peaks that devices reach. The backward of a contraction is one contraction for each
operand with a gradient. The backward of other operators is a pass over their saved tensors and the gradients that they
read and write. `fusion.py` finds the kernels, `matmul.py` the time of a matrix product. A device computes the kernels
of a function one after another.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.analyse.collectives import (
    OfGather,
    SizedCollective,
    TaskCollective,
    of_action,
    of_homes,
    of_section,
    of_task,
    of_travel,
)
from ssdsl.analyse.gathers import Staying
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Device
from ssdsl.ir.function import Function, OpPart, Section
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam, by_portions
from ssdsl.ir.program import Compute, Free, OnFlat, Role, Start, Traced, Travel, Update, Wait, WaitReduce
from ssdsl.ir.uses import InstrPlace
from ssdsl.model.graph import ITEMSIZE
from ssdsl.plan.plan import Phase, State
from ssdsl.record import replace
from ssdsl.simulate.price.costs import FREE, Cost, total
from ssdsl.simulate.price.fusion import Fusion, Launch
from ssdsl.simulate.price.in_flight import CallOf, Pass, Queued, events
from ssdsl.simulate.price.launch_time import LaunchTime
from ssdsl.simulate.price.network import Network
from ssdsl.simulate.price.overlap import overlapped
from ssdsl.simulate.price.travelling import Travelling


@dataclass(slots=True)
class ComputeTimes:
    """Seconds of one function's phases on one kind of device. `recompute` is the part of the forward that the backward
    repeats; `dgrad` and `wgrad` are without it."""

    forward: float = 0.0
    recompute: float = 0.0
    dgrad: float = 0.0
    wgrad: float = 0.0

    def add(self, other: "ComputeTimes") -> None:
        """Adds the times of another section or kernel."""
        self.forward += other.forward
        self.recompute += other.recompute
        self.dgrad += other.dgrad
        self.wgrad += other.wgrad

    def of(self, phase: Phase) -> float:
        """The seconds of a phase; a backward includes what it recomputes."""
        return phase.sum(self.forward, self.recompute + self.dgrad, self.wgrad)


@dataclass(slots=True)
class Computing:
    """The compute times of a program's functions."""

    facts: ProgramIndex
    fusion: Fusion
    _found: dict[tuple[int, Device], ComputeTimes] = field(default_factory=dict)
    _of_kind: dict[tuple[int | None, Device], ComputeTimes] = field(default_factory=dict)  # by a section's kind

    def times(self, function: Function, device: Device) -> ComputeTimes:
        """The times of a function's phases on a device, for one task."""
        function = self.facts.like(function)
        key = function.number, device
        if key not in self._found:
            times = self._found[key] = ComputeTimes()
            for number in range(len(function.sections)):
                times.add(self.of_section(function, number, device))
            times.wgrad += self._accumulating(function, device)
        return self._found[key]

    def of_section(self, function: Function, number: int, device: Device) -> ComputeTimes:
        """The times of one section of a function, by its number."""
        section = function.sections[number]
        key = section.kind, device
        if section.kind is None or key not in self._of_kind:
            times = self._of_kind[key] = ComputeTimes()
            for launch in self.fusion.launches(function)[number]:
                self._add(times, LaunchTime(self.facts, function, launch, device), section.recompute)
        return self._of_kind[key]

    def of_kernels(self, function: Function, number: int, device: Device) -> Iterator[tuple[OpPart, ComputeTimes]]:
        """Yields the last operator of each kernel of a section, and the kernel's times."""
        for launch in self.fusion.launches(function)[number]:
            yield launch.ops[-1], self._of_launch(function, function.sections[number], launch, device)

    def of_one(self, function: Function, op: OpPart, device: Device) -> ComputeTimes:
        """The times of the one kernel that an operator is in."""
        (section,) = (s for s in function.sections if op in s.body)
        return self._of_launch(function, section, self.fusion.launch_of(function, op), device)

    def _of_launch(self, function: Function, section: Section, launch: Launch, device: Device) -> ComputeTimes:
        times = ComputeTimes()
        self._add(times, LaunchTime(self.facts, function, launch, device), section.recompute)
        return times

    def _add(self, times: ComputeTimes, launch: LaunchTime, recompute: bool) -> None:
        times.forward += launch.forward(keeps=launch.learns and not recompute)
        if not launch.learns:
            return
        if recompute:
            times.recompute += launch.forward(keeps=True)
        for name, seconds in launch.backward():
            if name.value in self.facts.weights:
                times.wgrad += seconds
            else:
                times.dgrad += seconds

    def _accumulating(self, function: Function, device: Device) -> float:
        """The seconds in which a task adds its gradients of weights to those of earlier tasks; 0 with one part in
        time."""
        if math.prod(t.parts for t in function.time) == 1:
            return 0.0
        state, learned = self.facts.state, (p.var for p in function.parameters if p.var.gradient is not None)
        traffic = sum(v.elements * state.accumulation_traffic(v.dtype, fuses=self.facts.fuses) for v in learned)
        return traffic / device.achievable_bandwidth()


# -- costs of actions --------------------------------------------------------------------------------------------------


class Roofline:
    """Costs of a program's actions on a cluster."""

    def __init__(
        self,
        facts: ProgramIndex,
        cluster: Cluster,
        fusion: Fusion,
        offloaded: Callable[[Function], int] = lambda function: 0,
    ) -> None:
        self.offloaded = offloaded  # the bytes of activations that a task of a function leaves on the host
        self.facts, self.program, self.cluster = facts, facts.program, cluster
        self.cores = cluster.size if cluster.shares_cores else None
        self.computing = Computing(facts, fusion)
        self.network = Network(cluster)
        self.devices = {r.name: cluster.devices(tuple(r.submesh.ranks())) for r in self.program.roles}
        self.communication: dict[tuple[int, Phase, Staying], Cost] = {}

    def of(self, action: Traced, role: Role) -> Cost:
        """The cost of an action on the slowest device of a role."""
        match action:
            case Compute():
                stay = self.facts.stays(action)
                return self._compute(self.program.functions[action.function], action.phase, stay, role)
            case Start():
                return self.network.message(self.program.messages[action.message], action.gradient)
            case Travel():
                function = self.program.functions[action.function]
                calls = of_travel(function, action.output, gradient=action.gradient)
                return total(self.network.collective(call, function.submesh) for call in calls)
            case OnFlat():
                flat = self.program.flats[action.flat]
                found = of_action(action, flat, self.facts.state)
                tie = [self.tie(flat)] if isinstance(action, WaitReduce) else []
                return total([*(self.network.collective(c, flat.submesh) for c in found), *tie])
            case Update():
                return self._update(role)
            case Wait() | Free():
                return FREE
            case _:
                assert_never(action)

    def of_sections(self, function: Function, role: Role, phase: Phase) -> list[float]:
        """The seconds of the forward, or of the backward, of each section, with its collectives."""
        slowest, which = self._slowest(function, phase, role), 0 if phase.is_forward else 1
        return [self.of_section(function, number, slowest)[which] for number in range(len(function.sections))]

    def of_section(
        self, function: Function, number: int, device: Device, submesh: Submesh | None = None
    ) -> tuple[float, float]:
        """The seconds of a section's forward, and of its backward, on a device, with its collectives. These run on the
        function's own devices, or on those of `submesh`, which has the same axes."""
        times = self.computing.of_section(function, number, device)
        there = submesh or function.submesh

        def talks(*phases: Phase) -> float:
            found = (c for p in phases for c in of_section(self.facts, function, function.sections[number], p))
            awaited = (c for place, c in found if InstrPlace(number, place) not in function.departing)
            return sum(self.network.collective(c, there).time_s for c in awaited)

        back = times.recompute + times.dgrad + times.wgrad
        return times.forward + talks(Phase.FORWARD), back + talks(*(p for p in function.phases if not p.is_forward))

    def _compute(self, function: Function, phase: Phase, stay: Staying, role: Role) -> Cost:
        """The cost of a task: the time that it computes, and that of its collectives which no computing hides."""
        slowest, key = self._slowest(function, phase, role), (function.number, phase, stay)
        if key not in self.communication:
            self.communication[key] = total(cost for _, cost in self._collectives(function, phase, stay, slowest))
        computing = self.computing.times(function, slowest).of(phase) + self._copies(function, phase, role)
        return total((Cost(computing), self.communication[key]))

    def _copies(self, function: Function, phase: Phase, role: Role) -> float:
        """The seconds in which a task copies activations to the host, or from it: the device computes nothing in the
        meantime."""
        if phase not in (function.keeps, *(p for p in function.phases if p.of_inputs)):
            return 0.0
        size = self.offloaded(function) if any(section.on_host for section in function.sections) else 0
        host = self.cluster.host(role.submesh.first) if size else None
        return 0.0 if host is None else size / host.link_bandwidth

    def exposed(self, task: Compute, role: Role) -> Iterator[tuple[TaskCollective, float]]:
        """Yields the collectives of a task with the seconds of each that no computing hides."""
        function, stay = self.program.functions[task.function], self.facts.stays(task)
        slowest = self._slowest(function, task.phase, role)
        for found, cost in self._collectives(function, task.phase, stay, slowest):
            yield found, cost.communication_s

    def _slowest(self, function: Function, phase: Phase, role: Role) -> Device:
        return max(self.devices[role.name], key=lambda d: self.computing.times(function, d).of(phase))

    def _collectives(
        self, function: Function, phase: Phase, stay: Staying, device: Device
    ) -> Iterator[tuple[TaskCollective, Cost]]:
        """Yields the collectives that a task awaits, each with its cost: `hidden_s` of its time are hidden,
        `compute_s` is that by which operators are slower for it. Where none runs beside computing, those that overlap
        with the same product are hidden as a group: the longer time counts."""
        weights = self._weights(function, phase, stay)
        waits = self._waits(function, phase, device, weights)
        every = (
            c
            for c in of_task(self.facts, function, phase, stay)
            if not (weights and isinstance(c.origin, OfGather)) and c.origin not in function.departing
        )
        for (overlaps, place), group in itertools.groupby(every, key=lambda c: (c.call.overlaps, _in(waits, c))):
            found = [(c, self.network.collective(c.call, function.submesh)) for c in group]
            together = exposed = sum(cost.communication_s for _, cost in found)
            if place is not None:
                exposed = waits[place]
            elif overlaps is not None:
                op, in_phase = overlaps
                beside = self.computing.of_one(function, op, device).of(in_phase or phase)
                exposed = max(0.0, together - beside * (1 + device.contention))
            share = exposed / together if together else 1.0
            yield from ((c, _exposing(cost, share * cost.communication_s, device)) for c, cost in found)
        for number, collective in enumerate(weights.collectives if weights else ()):
            cost = self.network.collective(collective.call, function.submesh)
            yield collective, _exposing(cost, waits[number], device)

    def _weights(self, function: Function, phase: Phase, stay: Staying) -> Travelling | None:
        """The weights in parts that travel while a task computes; None if there are none."""
        is_whole = phase.is_forward or phase is Phase.BACKWARD
        if not (self.cluster.overlaps_collectives and is_whole and any(s.gathers for s in function.sections)):
            return None
        return Travelling(
            self.facts, function, phase, stay, lambda c: self.network.collective(c, function.submesh).communication_s
        )

    def _waits(
        self, function: Function, phase: Phase, device: Device, weights: Travelling | None
    ) -> dict[Hashable, float]:
        """If some collectives of a task run beside its computing, the seconds for which the device waits for those of
        each instruction, by its place, and for each of the weights', by its number."""
        is_beside = self.cluster.overlaps_collectives and any(s.in_flight for s in function.sections)
        if not (is_beside or weights):
            return {}
        found: dict[Hashable, float] = {}
        passes = [[*self._passes(function, n, phase, device)] for n in range(len(function.sections))]
        for key, seconds in overlapped(events(function, passes, weights), device.contention).exposed.items():
            at = key.at if isinstance(key, CallOf) else key
            found[at] = found.get(at, 0.0) + seconds
        return found

    def _passes(self, function: Function, number: int, phase: Phase, device: Device) -> Iterator[Pass]:
        """The forward or backward, or both in a recomputed section, that a phase of a function runs of a section."""
        section = function.sections[number]
        places = {op: k for k, op in enumerate(section.body) if isinstance(op, OpPart)}
        kernels = [(places[op], times) for op, times in self.computing.of_kernels(function, number, device)]

        def queued(section: Section, phase: Phase) -> dict[int, list[Queued]]:
            calls: dict[int, list[Queued]] = {}
            for place, call in of_section(self.facts, function, section, phase):
                if call.overlaps is None and InstrPlace(number, place) not in function.departing:
                    seconds = self.network.collective(call, function.submesh).communication_s
                    calls.setdefault(place, []).append((call.axes, seconds))
            return calls

        if phase.is_forward or (section.recompute and phase.of_inputs):
            times = {place: t.forward if phase.is_forward else t.recompute for place, t in kernels}
            yield Pass(times, queued(section, Phase.FORWARD), is_backward=False)
        if not phase.is_forward:
            times = {place: phase.sum(0.0, t.dgrad, t.wgrad) for place, t in kernels}
            yield Pass(times, queued(replace(section, recompute=False, kind=None), phase), is_backward=True)

    def _update(self, role: Role) -> Cost:
        """The cost of the optimizer's step: a pass over the weights and their state."""
        state = self.facts.state
        flats = self.program.flats_of(role)
        here = [f for f in flats if not f.on_host]
        times = []
        for at, ranks in by_portions(role.submesh, here):
            traffic = sum(state.update_traffic(f.dtype) * f.elements_over(f.sharded.optimizer, at) for f in here)
            devices = self.cluster.devices(ranks) if at else self.devices[role.name]
            times.append(traffic * max(1 / d.achievable_bandwidth() for d in devices))
        update = Cost(max(times))
        update = total((update, *self._on_host(role, [f for f in flats if f.on_host])))
        homes = (self.network.collective(c, flat.submesh) for flat in flats for c in of_homes(self.facts, flat))
        return total((update, *homes))

    def _on_host(self, role: Role, flats: list[FlatParam]) -> Iterator[Cost]:
        """Yields the cost of updates on the host: gradients go there, and weights that do not lie there come back, over
        the link of the device; meanwhile the host reads and writes the state of all devices of its node."""
        state, rank = self.facts.state, next(iter(role.submesh.ranks()))
        if flats and (host := self.cluster.host(rank)) is not None:
            elements = [(f, f.elements_over(f.sharded.optimizer)) for f in flats]
            back = {f: 0 if f.on_host is State.WEIGHTS else ITEMSIZE.get(f.dtype, 4) for f in flats}
            moved = sum(n * (state.gradient_bytes(f.dtype) + back[f]) for f, n in elements)
            traffic = sum(n * state.update_traffic(f.dtype) for f, n in elements)
            beside = self.cluster.on_node(rank, self.program.plan.devices)
            copies = 2 * len(flats) * host.latency + moved / host.link_bandwidth
            yield Cost(copies + traffic * beside / host.memory_bandwidth)

    def tie(self, flat: FlatParam) -> Cost:
        """The cost of summing a tied weight's gradients over the devices of all submeshes that hold the same part."""
        size = flat.elements_over(flat.sharded.optimizer) * self.facts.state.gradient_bytes(flat.dtype)
        ranks = tuple(sorted(s.ranks()[0] for s in flat.completion.tied))  # the first devices stand for the others
        return self.network.among(SizedCollective("all_reduce", (), size), ranks)


def _exposing(cost: Cost, exposed_s: float, device: Device) -> Cost:
    """The cost of communication for which a device waits for so many seconds; the rest is hidden, and makes the
    computing beside it slower."""
    hidden = max(0.0, cost.communication_s - exposed_s)
    slower = hidden - hidden / (1 + device.contention)
    return replace(cost, compute_s=slower, communication_s=exposed_s, hidden_s=hidden)


def _in(waits: dict[Hashable, float], found: TaskCollective) -> InstrPlace | None:
    """The instruction of a collective, if the time for which a device waits for it is known."""
    origin = found.origin
    return origin if isinstance(origin, InstrPlace) and origin in waits and found.call.overlaps is None else None
