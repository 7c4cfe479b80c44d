"""Costs from first principles: operators on a device's roofline, communication on a cluster's links."""

import math

from ssdsl.cluster.cluster import Cluster
from ssdsl.lower.schedule import Block, Role, Schedule, Transfer
from ssdsl.model.storage import Storage
from ssdsl.model.weight_values import weight_values
from ssdsl.plan.plan import Phase
from ssdsl.simulate.costs import Cost, Tail, ranks_of
from ssdsl.simulate.network import Network, unit_bytes
from ssdsl.simulate.work import Computing

OPTIMIZER_TRAFFIC = 7  # AdamW reads weight, gradient and two moments and writes all but the gradient


class Roofline:
    """Costs of a schedule on a cluster; `places` is what `storages` found."""

    def __init__(self, schedule: Schedule, cluster: Cluster, places: dict[str, Storage]) -> None:
        weights = weight_values(schedule.graph)
        self.schedule, self.cluster = schedule, cluster
        self.sharing = cluster.sharing(schedule.plan.devices)
        self.computing = Computing(schedule, places, weights, self.sharing)
        self.network = Network(schedule, cluster, places, weights)
        self.devices = {role.name: cluster.devices(ranks_of(schedule, role)) for role in schedule.roles}

    def task(self, block: Block, phase: Phase, role: Role) -> Cost:
        """Computing on the slowest of the role's devices, and the collectives of the block's conversions."""
        work = max((self.computing.block(block, d) for d in self.devices[role.name]), key=lambda w: w.forward)
        compute = {
            Phase.FORWARD: work.forward,
            Phase.BACKWARD: work.again + work.dgrad + work.wgrad,
            Phase.DGRAD: work.again + work.dgrad,
            Phase.WGRAD: work.wgrad,
        }[phase]
        return _sum([Cost(compute), *self.network.collectives(block, phase, role)])

    def transfer(self, transfer: Transfer, phase: Phase) -> Cost:
        """The slowest device's share."""
        return self.network.transfer(transfer, phase)

    def tail(self, role: Role) -> Tail:
        """The gradients' last reductions, then a pass over the weights and their state."""
        reduce: list[Cost] = []
        gather: list[Cost] = []
        traffic = 0
        for unit in self.network.units_of(role):
            submesh, size = unit.homes[0].submesh, unit_bytes(unit, self.schedule.graph)
            owned = size // math.prod(n for a, n in submesh.mesh.axes if a in unit.over)
            traffic += OPTIMIZER_TRAFFIC * owned
            if unit.cut == "optimizer":
                reduce += self.network.reduced(unit, size)
            elif not unit.cut and unit.partial:
                reduce.append(self.network.collective("all_reduce", submesh, unit.partial, size))
            if unit.cut in ("optimizer", "grads"):
                gather.append(self.network.collective("all_gather", submesh, unit.over, size))
            if unit.tied:
                reduce.append(self.network.tie(unit, size))
        slowest = max(self.sharing / d.achievable_bandwidth() for d in self.devices[role.name])
        return Tail(_sum(reduce), _sum([Cost(traffic * slowest), *gather]))


def _sum(costs: list[Cost]) -> Cost:
    return Cost(
        sum(c.compute_s for c in costs),
        sum(c.communication_s for c in costs),
        tuple(m for c in costs for m in c.messages),
    )
