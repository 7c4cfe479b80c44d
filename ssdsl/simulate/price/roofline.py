"""Costs from first principles: operators on a device's roofline, communication on a cluster's links."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Device
from ssdsl.ir.action import (
    Action,
    Compute,
    Free,
    GatherParam,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.function import Function
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam
from ssdsl.ir.parts import BACK_PHASES
from ssdsl.ir.program import Role
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.collectives import (
    ProgramIndex,
    SizedCollective,
    of_action,
    of_task,
)
from ssdsl.simulate.price.compute_time import Computing
from ssdsl.simulate.price.costs import FREE, Cost, total
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.network import Network


class Roofline:
    """Costs of a program's actions on a cluster."""

    def __init__(self, facts: ProgramIndex, cluster: Cluster, fusion: Fusion) -> None:
        self.facts, self.program, self.cluster = facts, facts.program, cluster
        self.cores = cluster.size if cluster.shares_cores else None
        self.computing = Computing(facts, fusion)
        self.network = Network(cluster)
        self.devices = {r.name: cluster.devices(tuple(r.submesh.ranks())) for r in self.program.roles}
        self.communication: dict[tuple[int, Phase], Cost] = {}

    def of(self, action: Action, role: Role) -> Cost:
        """The cost of an action on the slowest device of a role."""
        match action:
            case Compute():
                return self._compute(self.program.functions[action.function], action.phase, role)
            case Start():
                return self.network.message(self.program.messages[action.message], action.gradient)
            case ScatterGrads() | StartReduce() | WaitReduce() | GatherParam():
                flat = self.program.flats[action.flat]
                found = of_action(action, flat, self.facts.state)
                cost = total(self.network.collective(c, flat.submesh) for c in found)
                return total((cost, self._tie(flat))) if isinstance(action, WaitReduce) else cost
            case Update():
                return self._update(role)
            case Wait() | Free():
                return FREE
            case _:
                assert_never(action)

    def of_section(
        self, function: Function, number: int, device: Device, submesh: Submesh | None = None
    ) -> tuple[float, float]:
        """The seconds of a section's forward, and of its backward, on a device; with its collectives. These are of the
        function's own devices, or of those of a submesh with the same axes."""
        times = self.computing.of_section(function, number, device)
        there = submesh or function.submesh

        def talks(*phases: Phase) -> float:
            found = (c for p in phases for c in self.facts.collectives(function, function.sections[number], p))
            return sum(self.network.collective(c, there).time_s for c in found)

        back = times.recompute + times.dgrad + times.wgrad
        return times.forward + talks(Phase.FORWARD), back + talks(*BACK_PHASES[function.backward])

    def _compute(self, function: Function, phase: Phase, role: Role) -> Cost:
        """The cost of a task: its computing, and the time of its collectives beyond what computes meanwhile."""
        devices = self.devices[role.name]
        slowest = max(devices, key=lambda d: self.computing.times(function, d).of(phase))
        key = function.number, phase
        if key not in self.communication:
            self.communication[key] = total(self._collectives(function, phase, slowest))
        return total((Cost(self.computing.times(function, slowest).of(phase)), self.communication[key]))

    def _collectives(self, function: Function, phase: Phase, device: Device) -> Iterator[Cost]:
        """Yields the cost of a function's collectives, in groups that run behind the same operator, without the time
        that the operator hides."""
        for behind, found in itertools.groupby(of_task(self.facts, function, phase), key=lambda c: c.behind):
            cost, hidden = total(self.network.collective(c, function.submesh) for c in found), 0.0
            if behind is not None:
                op, meanwhile = behind
                hidden = self.computing.of_one(function, op, device).of(meanwhile or phase)
            # hidden as a group: operator and collectives run at the same time, and the longer one counts
            yield replace(cost, communication_s=max(0.0, cost.communication_s - hidden))

    def _update(self, role: Role) -> Cost:
        """The cost of the optimizer's step: a pass over the weights and their state."""
        state = self.facts.state
        flats = self.program.flats_of(role)
        traffic = sum(state.update_traffic(f.dtype) * f.elements_over(f.sharded.optimizer) for f in flats)
        return Cost(traffic * max(1 / d.achievable_bandwidth() for d in self.devices[role.name]))

    def _tie(self, flat: FlatParam) -> Cost:
        """The cost of summing a tied weight's gradients over the devices of all submeshes that hold the same part."""
        size = flat.elements_over(flat.sharded.optimizer) * self.facts.state.gradient_bytes(flat.dtype)
        ranks = tuple(sorted(s.ranks()[0] for s in flat.completion.tied))
        return self.network.among(SizedCollective("all_reduce", (), size), ranks)
