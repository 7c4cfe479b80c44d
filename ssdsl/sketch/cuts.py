"""Other cuts of a pipeline into stages: those with the fastest slowest stage, in place of stages of equal arithmetic.

The seconds of each layer on the devices of each stage, and the memory that it keeps there, are those of a simulated
plan (the sections of its functions); `solve/cuts.py` chooses the cuts. The resulting plan is simulated and proved like
any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, prod

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Device
from ssdsl.ir.function import OpPart, Section
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Members, Program
from ssdsl.lang import nodes
from ssdsl.model.graph import ITEMSIZE
from ssdsl.plan.eval.balance import GOOD_ENOUGH, Unit, joined
from ssdsl.plan.eval.units import deepest_level, module_runs, repeated_units
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Placement, Plan
from ssdsl.simulate.memory.state import StatePrecision
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import Prices, prices
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.sketch.write import with_answer
from ssdsl.solve.cuts import DeviceKind, LayerRow, StageCuts, cut

CUT = "cut"
WORDS = ("balance", CUT)
BETTER = 0.003  # of a step: the least gain that a cut must promise

Paths = tuple[str, ...]  # the first modules of all stages except the first


def is_open(sketch: Sketch) -> bool:
    """Whether the plan cuts the whole model into stages in one call, and does not say where."""
    return _call(sketch.script) is not None


def with_cuts(sketch: Sketch, values: Values, before: Paths) -> Sketch:
    """The sketch whose stages begin with these modules. Its params are no longer open, because the cuts depend on
    them."""
    call = _call(sketch.script)
    assert call is not None
    named = ", ".join(f'"{path}"' for path in before)
    return sketch.answered(with_answer(sketch.source.text, call, CUT, f"before = [{named}]"), values)


def cuts_of(
    plan: Plan,
    program: Program,
    report: Report,
    model: ModelIndex,
    cluster: Cluster,
    state: StatePrecision,
    share: float,
) -> Paths | None:
    """The cuts of a simulated plan's stages that promise a shorter step than its own, within this share of the memory;
    None if there are none, or if the plan is not a row of stages with devices of their own."""
    places = _places(plan, model)
    layers = _layers(model, len(places))
    priced = _Priced(program, prices(program, cluster, state), layers)
    meshes = {mesh.name: mesh for mesh in plan.meshes}
    roles = [priced.members[Submesh(meshes[place.mesh], place.fixed)] for place in places]
    if len(places) < 2 or any(len(own) > 1 for own in roles) or len(set(roles)) < len(roles):
        return None
    row = priced.row([role for (role,) in roles], report, cluster, share)
    own = _starts(plan, layers, places)
    found = cut(row)
    if found is None or found.starts == own or (own is not None and _gain(row, own, found) < BETTER):
        return None
    return tuple(layers[start].path for start in found.starts[1:])


@dataclass(frozen=True, slots=True)
class _Layer:
    """Operators that no cut separates, in the order of the graph, and the path that names the first of them."""

    path: str
    operators: Sequence[str]


def _layers(model: ModelIndex, stages: int) -> list[_Layer]:
    """Runs of operators between which the model may be cut: the repeated modules, or all modules if these are too
    few."""
    found: list[_Layer] = []
    for level in range(1, max(1, deepest_level(model, model.compute)) + 1):
        found = _named(model, joined(model, repeated_units(model, model.compute, level)))
        if len(found) >= GOOD_ENOUGH * stages:
            return found
    return _named(model, joined(model, module_runs(model, model.compute)))


def _named(model: ModelIndex, units: list[Unit]) -> list[_Layer]:
    """The units that begin with a module's path. A unit whose first operator is not the first beneath its path joins
    the unit before it."""
    found: list[_Layer] = []
    for path, names in units:
        first = min(names, key=model.position.__getitem__)
        path = path or model.operators[first].path
        whole = frozenset().union(*model.match(path)) & model.compute if path else frozenset[str]()
        begins = bool(whole) and min(whole, key=model.position.__getitem__) == first
        if found and not begins:
            found[-1] = _Layer(found[-1].path, [*found[-1].operators, *names])
        else:
            found.append(_Layer(path, names))
    return found


class _Priced:
    """The seconds and bytes of a program's layers."""

    def __init__(self, program: Program, found: Prices, layers: list[_Layer]) -> None:
        self.program, self.prices, self.layers = program, found, layers
        self.number = {name: n for n, layer in enumerate(layers) for name in layer.operators}
        self.members = Members(program.roles)

    def row(self, roles: list[int], report: Report, cluster: Cluster, share: float) -> LayerRow:
        """The problem for `solve/cuts.py`: one kind of device for each stage, as in the simulated plan."""
        state, kept = self.state(), self.kept()
        devices_of = {device.name: device for device in report.devices}
        by_device: dict[Device, tuple[float, ...]] = {}
        kinds, flight = [], []
        for r in roles:
            devices = cluster.devices(tuple(self.program.roles[r].submesh.ranks()))
            slowest = min(devices, key=lambda d: d.achievable_bandwidth())
            if slowest not in by_device:
                by_device[slowest] = self.seconds(slowest)
            device, own = devices_of[self.program.roles[r].name], self.of_role(r)
            activations = dict(device.peak_parts).get("activations", 0)
            flight.append(activations / max(1.0, sum(kept[n] for n in own)))
            times = (device.peak_bytes - activations) / max(1.0, sum(state[n] for n in own))
            capacity = inf if device.capacity_bytes is None else share * device.capacity_bytes
            kinds.append(DeviceKind(1, by_device[slowest], tuple(times * b for b in state), tuple(kept), capacity))
        stages = tuple((s,) for s in range(len(roles)))
        micro_batches = max(prod(index.parts for index in f.time) for f in self.program.functions)
        return LayerRow(tuple(kinds), stages, tuple(flight), len(roles), micro_batches)

    def seconds(self, device: Device) -> tuple[float, ...]:
        """The seconds of each layer's forward and backward for one micro-batch on a device."""
        found = [0.0] * len(self.layers)
        for function in self.program.functions:
            for number, section in enumerate(function.sections):
                if (layer := self.layer(section)) is not None:
                    found[layer] += self.prices.costs.of_section(function, number, device)
        return tuple(found)

    def state(self) -> list[float]:
        """The bytes of the weights that each layer reads, with their gradients and optimizer state."""
        found, state = [0.0] * len(self.layers), self.prices.state
        for param in self.program.params:
            each = ITEMSIZE.get(param.dtype, 4)
            if param.trained:
                each += state.gradient_bytes(param.dtype) + state.optimizer_bytes(param.dtype)
            readers = self.program.graph.readers.get(param.weight, ())
            for layer in {self.number[r.name] for r in readers if r.name in self.number}:
                found[layer] += param.elements * each
        return found

    def kept(self) -> list[float]:
        """The bytes that each layer's results keep for backward, per micro-batch; values that a stage receives do not
        count."""
        found, makers = [0.0] * len(self.layers), self.program.graph.makers
        for function in self.program.functions:
            own = {self.layer(section) for section in function.sections}
            for name, size in self.prices.activations.storages(function).items():
                layer = self.number.get(makers[name].name) if name in makers else None
                if layer is not None and layer in own:
                    found[layer] += size
        return found

    def of_role(self, role: int) -> set[int]:
        """The layers that a role runs."""
        own = (f for f in self.program.functions if role in self.members[f.submesh])
        return {n for f in own for section in f.sections if (n := self.layer(section)) is not None}

    def layer(self, section: Section) -> int | None:
        """The number of the layer that a section's first operator is in."""
        return next(
            (self.number[i.operator] for i in section.body if isinstance(i, OpPart) and i.operator in self.number), None
        )


def _places(plan: Plan, model: ModelIndex) -> list[Placement]:
    """The places of the model's operators, in the order of the graph; equal neighbours once."""
    return [place for place, _ in groupby(plan.of(op.name).home for op in model.ordered(model.compute))]


def _starts(plan: Plan, layers: list[_Layer], places: list[Placement]) -> tuple[int, ...] | None:
    """The first layers of the plan's present stages; None if a cut is inside a layer."""
    of_layer = [{plan.of(name).home for name in layer.operators} for layer in layers]
    if any(len(there) > 1 for there in of_layer):
        return None
    order = [next(iter(there)) for there in of_layer]
    starts = tuple(n for n, place in enumerate(order) if n == 0 or place != order[n - 1])
    return starts if len(starts) == len(places) else None


def _gain(row: LayerRow, own: tuple[int, ...], found: StageCuts) -> float:
    """The share of a step by which a cut is better than the present one."""
    ends = (*own[1:], row.layers)
    times = [sum(k.seconds[a:b]) for k, a, b in zip(row.kinds, own, ends, strict=True)]
    # A step takes all stages for the first micro-batch, and the slowest stage for each of the others.
    return 1 - found.step_s / (sum(times) + (row.micro_batches - 1) * max(times))


def _call(script: nodes.Script) -> nodes.Call | None:
    """The one call that cuts the model into stages, if it has no `before` yet."""
    calls = [
        node
        for node in nodes.walk(script)
        if isinstance(node, nodes.Call)
        and isinstance(node.function, nodes.NameExpression)
        and node.function.text in WORDS
    ]
    if len(calls) != 1 or len(calls[0].arguments) != 2:
        return None
    first = calls[0].arguments[0]
    return calls[0] if isinstance(first, nodes.NameExpression) and first.text == "model" else None
