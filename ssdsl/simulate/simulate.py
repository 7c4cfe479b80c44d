"""Schedule -> Report: one step on a cluster, as the program would run it."""

from ssdsl.cluster.cluster import Cluster
from ssdsl.lower.schedule import Role, Schedule
from ssdsl.model.graph import Stage
from ssdsl.model.storage import storages
from ssdsl.model.weight_values import weight_values
from ssdsl.simulate.activations import Activations
from ssdsl.simulate.costs import Costs, Message, ranks_of
from ssdsl.simulate.draw import draw
from ssdsl.simulate.memory import memories
from ssdsl.simulate.report import DeviceReport, Report, Traffic
from ssdsl.simulate.roofline import Roofline
from ssdsl.simulate.run import Ended, Ran, run
from ssdsl.simulate.timeline import Memory
from ssdsl.text.source import Source


def simulate(schedule: Schedule, source: Source, cluster: Cluster, costs: Costs | None = None) -> Report:
    """A step's time, memory and traffic. `source` is the plan's text; `costs`, if not given, are a roofline's.

    Raises PlanError where the plan needs more devices than the cluster has.
    """
    cluster.check_size(schedule.plan.devices, schedule.plan.meshes[-1].span)
    places = storages(schedule.graph)
    trace = run(schedule, costs or Roofline(schedule, cluster, places))
    activations = Activations(schedule, places, weight_values(schedule.graph))
    capacity = [_capacity(schedule, role, cluster) for role in schedule.roles]
    ran = trace.by_role(len(schedule.roles))
    memory = memories(schedule, ran, activations, capacity)
    step = max((e.end for e in trace.ended), default=0.0)
    rows = [r for r, role in enumerate(schedule.roles) if role.tasks]
    devices = tuple(_device(schedule, cluster, r, ran[r], trace.ended[r], memory[r], step) for r in rows)
    flops = _model_flops(schedule)
    cost = max((d.span_s for d in devices), default=0.0)
    busy = max((d.compute_s + d.communication_s for d in devices), default=0.0)
    return Report(
        draw(schedule, source, cluster, trace, memory, step),
        cluster.name,
        devices,
        step,
        (cost - busy) / cost if cost else 0.0,
        flops,
        _mfu(schedule, cluster, flops, step),
        tuple(_traffic(schedule, ran, trace.ended)),
    )


def _capacity(schedule: Schedule, role: Role, cluster: Cluster) -> int | None:
    ranks = ranks_of(schedule, role)
    smallest = min(device.memory_bytes for device in cluster.devices(ranks))
    return int(smallest / cluster.sharing(schedule.plan.devices))


def _device(
    schedule: Schedule, cluster: Cluster, r: int, ran: list[Ran], ended: Ended, memory: Memory, step: float
) -> DeviceReport:
    role = schedule.roles[r]
    ran = [x for x in ran if x.task.transfer is None]
    ranks = ranks_of(schedule, role)
    compute, communication = sum(x.cost.compute_s for x in ran), sum(x.cost.communication_s for x in ran)
    reduce, optimizer = ended.reduced - ended.start, ended.end - ended.reduced
    busy = compute + communication + reduce + optimizer
    return DeviceReport(
        role.name,
        ranks,
        ", ".join(d.name for d in cluster.devices(ranks)),
        max(x.end for x in ran) - min(x.start for x in ran) if ran else 0.0,
        compute,
        communication,
        reduce,
        optimizer,
        max(0.0, 1 - busy / step) if step else 0.0,
        memory.peak_bytes,
        memory.peak_parts,
        memory.capacity_bytes,
    )


def _model_flops(schedule: Schedule) -> int:
    """Forward once, backward twice that, of all operators whose outputs learn; no work that is repeated."""
    values = schedule.graph.values
    total = 0
    for operator in schedule.graph.operators:
        if operator.stage is Stage.COMPUTE:
            learns = any(values[o.value].differentiable for o in operator.outputs)
            total += operator.flops * (3 if learns else 1)
    return total


def _mfu(schedule: Schedule, cluster: Cluster, flops: int, step: float) -> float | None:
    """The share of all devices' peaks, in the dtype in which most of the arithmetic is done."""
    by_dtype: dict[str, int] = {}
    for operator in schedule.graph.operators:
        if operator.outputs:
            dtype = schedule.graph.values[operator.outputs[0].value].dtype
            by_dtype[dtype] = by_dtype.get(dtype, 0) + operator.flops
    if not step or not flops:
        return None
    dtype = max(by_dtype, key=lambda d: by_dtype[d])
    sharing = cluster.sharing(schedule.plan.devices)
    peak = sum(cluster.device(rank).peak_flops(dtype) for rank in range(schedule.plan.devices)) / sharing
    return flops / (step * peak)


def _traffic(schedule: Schedule, ran: list[list[Ran]], ended: list[Ended]) -> list[Traffic]:
    """Bytes and calls by level and kind, summed over all devices."""
    found: dict[tuple[str, str], tuple[int, int]] = {}

    def add(message: Message, devices: int) -> None:
        calls, size = found.get((message.level, message.kind), (0, 0))
        found[message.level, message.kind] = (
            calls + message.calls * devices,
            size + message.size_bytes * devices,
        )

    for r, role in enumerate(schedule.roles):
        devices = len(ranks_of(schedule, role))
        for x in (x for x in ran[r] if not x.sends):
            for message in x.cost.messages:
                add(message, min(devices, message.ranks) if x.task.transfer is not None else devices)
        for cost in (ended[r].tail.reduce, ended[r].tail.optimizer):
            for message in cost.messages:
                add(message, devices)
    return [Traffic(level, kind, calls, size) for (level, kind), (calls, size) in sorted(found.items())]
