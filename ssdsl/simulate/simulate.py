"""Simulates one step of a program on a cluster, and reports its time, memory and traffic."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.ir.execute import ActionPart
from ssdsl.ir.param import by_portions
from ssdsl.ir.program import Compute, Program, Role, Start, Update
from ssdsl.model.products import step_flops
from ssdsl.record import Record, replace
from ssdsl.simulate.draw_timeline import draw, title_of
from ssdsl.simulate.early_receives import roles_of_devices
from ssdsl.simulate.errors import NoHost
from ssdsl.simulate.exposed import Exposure, exposures
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.memory.memory import memories, state_bytes
from ssdsl.simulate.price.costs import CommCost, Costs
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.roofline import Roofline
from ssdsl.simulate.report import DeviceReport, Report, Traffic
from ssdsl.simulate.run import Epilogue, Interval, Trace, epilogues, run
from ssdsl.simulate.shared_cores import on_cores
from ssdsl.simulate.timeline import Memory
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source


class SimulatedStep(Record):
    """A simulated step of a program: the trace of all roles, the end of each role's step, and its memory."""

    cluster: Cluster
    trace: Trace
    ends: list[Epilogue]
    memory: list[Memory]


class Prices(Record):
    """The costs of a program's functions and messages on a cluster, and the memory that they keep; each is found at the
    first look-up."""

    program: Program
    cluster: Cluster
    state: StatePrecision
    activations: Activations
    costs: Roofline

    def serve(self, program: Program, cluster: Cluster, state: StatePrecision) -> bool:
        """Whether these prices also hold for another program: it has the same functions and messages, but may run its
        tasks in another order."""
        same = self.program.functions is program.functions and self.cluster is cluster and self.state == state
        # which weights stay, and so what a task gathers, follows from the order
        return same and self.program.messages == program.messages and not any(f.kept for f in program.flats)


def prices(program: Program, cluster: Cluster, state: StatePrecision = MIXED) -> Prices:
    """The prices of a program's functions. Raises PlanError if the plan needs more devices than the cluster has."""
    cluster.check_size(program.plan.devices, program.plan.meshes[-1].span)
    facts = ProgramIndex.on(program, cluster, state)
    fusion = Fusion(facts)
    activations = Activations(facts, fusion)
    costs = Roofline(facts, cluster, fusion, lambda function: activations.of(function).host_bytes)
    return Prices(program, cluster, state, activations, costs)


@paused_collector()
def simulate(
    program: Program, source: Source, cluster: Cluster, costs: Costs | None = None, state: StatePrecision = MIXED
) -> Report:
    """The report of a step: its time, memory and traffic. `source` is the plan's text; `costs` are a roofline's by
    default; `state` says what training keeps of each weight.

    Raises PlanError if the plan needs more devices than the cluster has.
    """
    return report(simulated(program, cluster, prices(program, cluster, state), costs), program, source)


def simulated(program: Program, cluster: Cluster, prices: Prices, costs: Costs | None = None) -> SimulatedStep:
    """The step without a report. Programs that differ only in the places of statements have the same step."""
    check_host(program, cluster)
    program = replace(program, roles=roles_of_devices(program))
    kinds = [cluster.devices(tuple(role.submesh.ranks())) for role in program.roles]
    # times that were measured in a step include what communication beside them costs
    contention = None if costs else [max(device.contention for device in devices) for devices in kinds]
    costs = costs or prices.costs
    trace = run(
        program, costs, overlaps=cluster.overlaps_collectives, blocks=not cluster.overlap.sends, contention=contention
    )
    if costs.cores is not None and program.plan.devices > costs.cores:
        trace = on_cores(trace, [role.submesh.size for role in program.roles], costs.cores)
    fullest = [fullest_devices(program, role, cluster, prices.state) for role in program.roles]
    capacity: list[int | None] = [capacity_bytes for _, capacity_bytes in fullest]
    memory = memories(program, trace, prices.activations, capacity, [at for at, _ in fullest])
    return SimulatedStep(cluster, trace, epilogues(trace), memory)


def check_host(program: Program, cluster: Cluster) -> None:
    """Raises PlanError if state lies on hosts of which the cluster's file says nothing."""
    places = [flat.submesh for flat in program.flats if flat.on_host]
    places += [f.submesh for f in program.functions if any(section.on_host for section in f.sections)]
    if any(cluster.host(place.first) is None for place in dict.fromkeys(places)):
        raise PlanError(NoHost(program.plan.host_span, cluster.name))


def report(step: SimulatedStep, program: Program, source: Source) -> Report:
    """The report of a simulated step; its timeline refers to the lines of the plan's text."""
    cluster, trace, ends = step.cluster, step.trace, step.ends
    step_s, exposed = max((e.end for e in ends), default=0.0), exposures(program, trace, cluster)
    kept = [r for r, role in enumerate(program.roles) if role.actions]
    devices = tuple(
        _device(program, program.roles[r], cluster, trace.ran[r], exposed[r], step.memory[r], step_s) for r in kept
    )
    flops = step_flops(program.graph, trains=program.trains)
    cost = max((d.span_s for d in devices), default=0.0)
    busy = max((_busy_in_span(trace.ran[r], ends[r]) for r in kept), default=0.0)
    bubble = max(0.0, (cost - busy) / cost) if cost else 0.0
    return Report(
        title_of(program, cluster),
        source.name,
        cluster.name,
        devices,
        step_s,
        bubble,
        round(sum(flops.values())),
        _mfu(program, cluster, flops, step_s),
        tuple(_traffic(program, trace, cluster)),
        program.plan.devices,
        program.kernels,
        lambda: replace(draw(program, source, cluster, trace, ends, exposed, step.memory), bubble=bubble),
        _price(program, trace, cluster, step_s),
        cluster.price.currency if cluster.price is not None else "",
    )


def _price(program: Program, trace: Trace, cluster: Cluster, step_s: float) -> float | None:
    """What a step costs: the time of all devices of the plan, and what goes between sites."""
    if cluster.price is None:
        return None
    sent = sum(cluster.sent_price(c.kind, c.level, c.size_bytes, c.ranks) * times for c, times in _sent(program, trace))
    return cluster.second_price(program.plan.devices) * step_s + sent


def capacity_bytes(program: Program, role: Role, cluster: Cluster, ranks: Sequence[int] = ()) -> int:
    """The bytes of memory of a role's smallest device, or of the smallest of these, divided by the number of ranks that
    share it."""
    smallest = min(device.memory_bytes for device in cluster.devices(tuple(ranks or role.submesh.ranks())))
    return int(smallest / cluster.sharing(program.plan.devices))


def fullest_devices(
    program: Program, role: Role, cluster: Cluster, state: StatePrecision
) -> tuple[Mapping[str, int], int]:
    """The devices of a role whose portions of the state leave least of their memory: their coordinates along axes with
    portions, and the bytes of their memory."""
    groups = by_portions(role.submesh, program.flats_of(role))
    if len(groups) == 1:
        return {}, capacity_bytes(program, role, cluster)
    learned = {weight: 0.0 for flat in program.flats_of(role) for weight in flat.weights}
    sized = [(at, capacity_bytes(program, role, cluster, ranks)) for at, ranks in groups]
    return min(sized, key=lambda one: one[1] - state_bytes(program, state, role, learned, one[0]))


def _device(
    program: Program,
    role: Role,
    cluster: Cluster,
    intervals: list[Interval],
    exposure: Exposure,
    memory: Memory,
    step: float,
) -> DeviceReport:
    tasks = [x for x in intervals if isinstance(x.action, Compute)]
    ranks = tuple(role.submesh.ranks())
    compute = sum(x.cost.compute_s for x in tasks)
    optimizer = sum(x.cost.compute_s for x in intervals if isinstance(x.action, Update))
    parts = exposure.parts()
    spent = compute + optimizer + sum(time_s for _, time_s in parts)
    return DeviceReport(
        role.name,
        ranks,
        ", ".join(d.name for d in cluster.devices(ranks)),
        max(x.end for x in tasks) - min(x.start for x in tasks) if tasks else 0.0,
        compute,
        optimizer,
        exposure.communication_s,
        parts,
        max(0.0, 1 - spent / step) if step else 0.0,
        memory.peak_bytes,
        memory.peak_parts,
        memory.capacity_bytes,
        memory.host_bytes,
        _host_capacity(program, role, cluster) if memory.host_bytes else None,
    )


def _host_capacity(program: Program, role: Role, cluster: Cluster) -> int | None:
    """The bytes of its host's memory that each device of a role may have: the share of one of its node's ranks."""
    rank = role.submesh.first
    host = cluster.host(rank)
    return None if host is None else host.memory_bytes // cluster.on_node(rank, program.plan.devices)


def _busy_in_span(intervals: list[Interval], epilogue: Epilogue) -> float:
    """The seconds up to its last task in which a role computes, waits for collectives, or reduces gradients."""
    tasks = [x.cost for x in intervals if isinstance(x.action, Compute)]
    waits = sum(cost.communication_s for cost in tasks)
    waits += sum(end - start for start, end in epilogue.reduces) - epilogue.reduce_s
    return sum(cost.compute_s for cost in tasks) + waits


def _mfu(program: Program, cluster: Cluster, flops: Mapping[str, float], step: float) -> float | None:
    """The share of all devices' peak that a step reaches, in the dtype of most of the arithmetic; None without any.

    A product in another dtype counts as what the devices could compute meanwhile in that one: half as much, if its peak
    is twice as high. Where devices differ in that, the least counts, so that no step reaches more than the peak.
    """
    if not step or not any(flops.values()):
        return None
    main = max(flops, key=lambda dtype: flops[dtype])
    devices = [cluster.device(rank) for rank in range(program.plan.devices)]
    kinds = set(devices)
    worth = {dtype: min(d.peak_flops(main) / d.peak_flops(dtype) for d in kinds) for dtype in flops}
    peak = sum(d.peak_flops(main) for d in devices) / cluster.sharing(len(devices))
    return sum(count * worth[dtype] for dtype, count in flops.items()) / (step * peak)


def _sent(program: Program, trace: Trace) -> Iterator[tuple[CommCost, int]]:
    """Yields what tasks send, each with the number of devices that do so in a step."""
    devices = [role.submesh.size for role in program.roles]
    ran = [x for x in trace.intervals if x.part is not ActionPart.SENT]
    times = Counter((x.cost, x.role, isinstance(x.action, Start)) for x in ran)  # few: a function's tasks cost the same
    for (cost, role, is_message), count in times.items():
        for sent in cost.sent:
            yield sent, count * (min(devices[role], sent.ranks) if is_message else devices[role])


def _traffic(program: Program, trace: Trace, cluster: Cluster) -> list[Traffic]:
    """Bytes and calls by level, the innermost first, and kind, summed over all devices."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for sent, here in _sent(program, trace):
        calls, size = found.get((sent.level, sent.kind), (0, 0))
        found[sent.level, sent.kind] = calls + sent.calls * here, size + sent.size_bytes * here
    sizes = {level.name: level.size for group in cluster.groups for level in (*group.levels, *cluster.levels)}
    # times from a file have no level
    ordered = sorted(found.items(), key=lambda item: (sizes.get(item[0][0], 0), item[0]))
    return [Traffic(level, kind, calls, size) for (level, kind), (calls, size) in ordered]
