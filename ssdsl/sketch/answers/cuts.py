"""Other cuts of a pipeline into stages: those with the shortest step, in place of stages of equal arithmetic.

The seconds of each layer on the devices of each stage, and the memory that it keeps there, are those of a simulated
plan (the sections of its functions); `solve/cuts.py` chooses the cuts. The resulting plan is simulated and proved like
any other.
"""

from collections.abc import Sequence
from itertools import groupby
from math import inf, prod

from ssdsl.analyse.state import StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Device
from ssdsl.ir.function import Function, OpPart, Section
from ssdsl.ir.layout import Submesh
from ssdsl.ir.place import Place, place_of
from ssdsl.ir.program import Members, Program
from ssdsl.lang import nodes
from ssdsl.model.graph import ITEMSIZE
from ssdsl.plan.eval.balance import GOOD_ENOUGH, Unit, joined
from ssdsl.plan.eval.units import deepest_level, module_runs, repeated_units
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Placement, Plan
from ssdsl.record import Record
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import Prices, prices
from ssdsl.sketch.answers.write import with_answer
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.solve.cuts import DeviceKind, LayerRow, StageCuts, cut

CUT = "cut"
WORDS = ("balance", CUT)
BETTER = 0.003  # of a step: the least gain that a cut must promise

Paths = tuple[str, ...]  # the first modules of all stages except the first


def is_open(sketch: Sketch) -> bool:
    """Whether the plan cuts the whole model into stages in one call, and does not say where."""
    return call_of(sketch.script) is not None


def with_cuts(sketch: Sketch, values: Values, before: Paths) -> Sketch:
    """The sketch whose stages begin with these modules. Its params are no longer open, because the cuts depend on
    them."""
    call = call_of(sketch.script)
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
    places = places_of(plan, model)
    layers = layers_of(model, len(places))
    priced = Priced(program, prices(program, cluster, state), layers)
    if (roles := priced.roles_of(places)) is None:
        return None
    row = priced.row(roles, report, cluster, share)
    own = starts_of(plan, layers, places)
    found = cut(row)
    if found is None or found.starts == own or (own is not None and _gain(row, own, found) < BETTER):
        return None
    return tuple(layers[start].path for start in found.starts[1:])


class Layer(Record):
    """Operators that no cut separates, in the order of the graph, and the path that names the first of them."""

    path: str
    operators: Sequence[str]


def layers_of(model: ModelIndex, stages: int) -> list[Layer]:
    """Runs of operators between which the model may be cut: the repeated modules, or all modules if these are too
    few."""
    found: list[Layer] = []
    for level in range(1, max(1, deepest_level(model, model.compute)) + 1):
        found = _named(model, joined(model, repeated_units(model, model.compute, level)))
        if len(found) >= GOOD_ENOUGH * stages:
            return found
    return _named(model, joined(model, module_runs(model, model.compute)))


def _named(model: ModelIndex, units: list[Unit]) -> list[Layer]:
    """The units that begin with a module's path. A unit whose first operator is not the first beneath its path joins
    the unit before it."""
    found: list[Layer] = []
    for path, names in units:
        first = min(names, key=model.position.__getitem__)
        path = path or model.operators[first].path
        whole = frozenset().union(*model.match(path)) & model.compute if path else frozenset[str]()
        begins = bool(whole) and min(whole, key=model.position.__getitem__) == first
        if found and not begins:
            found[-1] = Layer(found[-1].path, [*found[-1].operators, *names])
        else:
            found.append(Layer(path, names))
    return found


class Priced:
    """The seconds and bytes of a program's layers."""

    def __init__(self, program: Program, found: Prices, layers: list[Layer]) -> None:
        self.program, self.prices, self.layers = program, found, layers
        self.number = {name: n for n, layer in enumerate(layers) for name in layer.operators}
        self.members = Members(program.roles)

    def roles_of(self, places: Sequence[Placement]) -> list[int] | None:
        """The role of each stage; None unless these are a row of several stages with devices of their own."""
        meshes = {mesh.name: mesh for mesh in self.program.plan.meshes}
        roles = [self.members[Submesh(meshes[place.mesh], place.fixed)] for place in places]
        if len(places) < 2 or any(len(own) > 1 for own in roles) or len(set(roles)) < len(roles):
            return None
        return [role for (role,) in roles]

    def row(self, roles: list[int], report: Report, cluster: Cluster, share: float) -> LayerRow:
        """The problem for `solve/cuts.py`: one kind of device for each stage, as in the simulated plan. Stages on like
        devices may be of unlike kinds, because other links join them."""
        state, kept = self.state(), self.kept()
        devices_of = {device.name: device for device in report.devices}
        priced: dict[tuple[Device, Place], tuple[tuple[float, ...], tuple[float, ...]]] = {}
        kinds = []
        for r in roles:
            submesh = self.program.roles[r].submesh
            devices = cluster.devices(tuple(submesh.ranks()))
            slowest = min(devices, key=lambda d: d.achievable_bandwidth())
            there = slowest, place_of(cluster, submesh)
            if there not in priced:
                priced[there] = self.seconds(slowest, submesh)
            device, own = devices_of[self.program.roles[r].name], self.of_role(r)
            activations = dict(device.peak_parts).get("activations", 0)
            times = (device.peak_bytes - activations) / max(1.0, sum(state[n] for n in own))
            capacity = inf if device.capacity_bytes is None else share * device.capacity_bytes
            kinds.append(DeviceKind(1, *priced[there], tuple(times * b for b in state), tuple(kept), capacity))
        stages = tuple((s,) for s in range(len(roles)))
        return LayerRow(tuple(kinds), stages, self.in_flight(roles, report), len(roles), self.micro_batches)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches, with all that is cut in time."""
        return max(prod(index.parts for index in f.time) for f in self.program.functions)

    def in_flight(self, roles: list[int], report: Report) -> tuple[float, ...]:
        """The number of micro-batches that each stage holds at once, by the memory of a simulated step."""
        kept, found = self.kept(), []
        devices_of = {device.name: device for device in report.devices}
        for r in roles:
            device, own = devices_of[self.program.roles[r].name], self.of_role(r)
            found.append(dict(device.peak_parts).get("activations", 0) / max(1.0, sum(kept[n] for n in own)))
        return tuple(found)

    def seconds(self, device: Device, submesh: Submesh) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The seconds of each layer for one micro-batch on such a device of a submesh, and those of its forward alone.
        A layer that is cut over other axes communicates as where it is now."""
        both, forward = [0.0] * len(self.layers), [0.0] * len(self.layers)
        for function in self.program.functions:
            there = submesh if function.submesh.axes == submesh.axes else None
            for number, section in enumerate(function.sections):
                first, back = self.prices.costs.of_section(function, number, device, there)
                for layer, share in self.layers_in(section).items():
                    both[layer] += share * (first + back)
                    forward[layer] += share * first
        return tuple(both), tuple(forward)

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
            own = self.of_function(function)
            for name, size in self.prices.activations.storages(function).items():
                layer = self.number.get(makers[name].name) if name in makers else None
                if layer is not None and layer in own:
                    found[layer] += size
        return found

    def of_role(self, role: int) -> set[int]:
        """The layers that a role runs."""
        own = (f for f in self.program.functions if role in self.members[f.submesh])
        return set().union(*map(self.of_function, own))

    def of_function(self, function: Function) -> set[int]:
        """The layers that a function runs."""
        return {layer for section in function.sections for layer in self.layers_in(section)}

    def layers_in(self, section: Section) -> dict[int, float]:
        """The layers that a section runs, each with its share of the section's arithmetic."""
        operators, found = self.program.graph.by_name, dict[int, float]()
        for step in section.body:
            if isinstance(step, OpPart) and (layer := self.number.get(step.operator)) is not None:
                found[layer] = found.get(layer, 0.0) + operators[step.operator].flops + 1
        return {layer: work / sum(found.values()) for layer, work in found.items()}


def places_of(plan: Plan, model: ModelIndex) -> list[Placement]:
    """The places of the model's operators, in the order of the graph; equal neighbours once."""
    return [place for place, _ in groupby(plan.of(op.name).home for op in plan.graph.computing)]


def starts_of(plan: Plan, layers: list[Layer], places: list[Placement]) -> tuple[int, ...] | None:
    """The first layers of the plan's present stages; None if a cut is inside a layer."""
    of_layer = [{plan.of(name).home for name in layer.operators} for layer in layers]
    if any(len(there) > 1 for there in of_layer):
        return None
    order = [next(iter(there)) for there in of_layer]
    starts = tuple(n for n, place in enumerate(order) if n == 0 or place != order[n - 1])
    return starts if len(starts) == len(places) else None


def _gain(row: LayerRow, own: tuple[int, ...], found: StageCuts) -> float:
    """The share of a step by which a cut is better than the present one."""
    return 1 - found.step_s / row.step_s(own, range(len(own)))


def call_of(script: nodes.Script) -> nodes.Call | None:
    """The one call that cuts the model into stages, if it has no `before` yet."""
    calls = [call for _, call in nodes.calls_of(script, WORDS)]
    if len(calls) != 1 or len(calls[0].arguments) != 2:
        return None
    first = calls[0].arguments[0]
    return calls[0] if isinstance(first, nodes.NameExpression) and first.text == "model" else None
