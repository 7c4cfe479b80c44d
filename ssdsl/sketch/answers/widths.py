"""Chooses over how many devices each stage of a pipeline goes, together with the cuts of the model.

The seconds of each layer on a stage of so many devices, and its memory there, come from the plan with all layers in one
such stage; the number of micro-batches that a stage holds at once comes from a simulated plan with as many stages.
`solve/cuts.py` chooses the widths and the cuts. The resulting plan is simulated and proved like any other.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from ssdsl.analyse.state import StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.program import Kernels, ScatterGrads, StartReduce, Update
from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.plan.eval.select import mesh_size
from ssdsl.plan.interpret import interpret_part, read_plan
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Plan
from ssdsl.plan.values import is_list, is_whole
from ssdsl.record import Record, replace
from ssdsl.simulate.memory.memory import state_bytes
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import capacity_bytes, prices
from ssdsl.sketch.answers import cuts
from ssdsl.sketch.answers.write import with_answer
from ssdsl.sketch.bounds.task_bounds import Unordered, unordered
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.solve.cuts import DeviceKind, LayerRow, cut
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Candidate

WIDTHS = "widths"
ALLOWED = "allowed_of_widths"


def is_open(sketch: Sketch) -> bool:
    """Whether the plan leaves open on how many devices each stage runs, and where the model is cut."""
    return _call(sketch.script) is not None and cuts.is_open(sketch)


def stages_param(sketch: Sketch) -> str:
    """The param of an open plan that is its number of stages."""
    call = _call(sketch.script)
    assert call is not None
    return _name(call.arguments[1])


class StageWidths(Record):
    """The numbers of devices of the stages, and the first modules of all stages except the first."""

    widths: tuple[int, ...]
    before: cuts.Paths


def with_widths(sketch: Sketch, values: Values, found: StageWidths) -> Sketch:
    """The sketch with these stages. Its params are no longer open, because the stages depend on them."""
    width, cut_ = _call(sketch.script), cuts.call_of(sketch.script)
    assert width is not None and cut_ is not None
    paths = ", ".join(f'"{path}"' for path in found.before)
    answers = [
        (cut_, cuts.CUT, f"before = [{paths}]"),
        (width, WIDTHS, f"each = [{', '.join(map(str, found.widths))}]"),
    ]
    text = sketch.source.text
    for call, name, answer in sorted(answers, key=lambda a: a[0].span.start, reverse=True):
        text = with_answer(text, call, name, answer)
    return sketch.answered(text, values)


@dataclass
class WidthFinder:
    """Finds the stages of open plans for a model on a cluster. Layers on stages of one width are priced once for all
    numbers of stages."""

    model: ModelIndex
    cluster: Cluster
    state: StatePrecision
    kernels: Kernels
    _priced: dict[tuple[object, ...], Unordered | None] = field(default_factory=dict)

    def of(self, sketch: Sketch, values: Values, like: Candidate, report: Report, share: float) -> StageWidths | None:
        """Stages that promise a shorter step than the simulated plan `like`, the sketch under these values, within
        this share of the memory. None if there are none, or if the plan is not a row of stages with meshes of their
        own."""
        plan, program = like.plan, like.lowered.program
        places = cuts.places_of(plan, self.model)
        layers = cuts.layers_of(self.model, len(places))
        base = cuts.Priced(program, prices(program, self.cluster, self.state), layers)
        roles = base.roles_of(places)
        if roles is None or len(plan.meshes) != len(places) or any(place.fixed for place in places):
            return None
        scratch = max(_scratch(base, r, report) for r in roles)
        alone = self._kinds(sketch, values, plan.devices, layers, base.micro_batches)
        kinds = tuple(replace(kind, memory_bytes=share * kind.memory_bytes - scratch) for kind in alone)
        if not kinds:
            return None
        stages = (tuple(range(len(kinds))),) * len(roles)
        row = LayerRow(kinds, stages, base.in_flight(roles, report), plan.devices, base.micro_batches)
        found = cut(row)
        own = cuts.starts_of(plan, layers, places)
        if found is None or (own is not None and found.step_s > (1 - cuts.BETTER) * _own_step_s(row, own, plan)):
            return None
        widths = tuple(kinds[k].devices for k in found.kinds)
        return StageWidths(widths, tuple(layers[start].path for start in found.starts[1:]))

    def _kinds(
        self, sketch: Sketch, values: Values, devices: int, layers: list[cuts.Layer], micro_batches: int
    ) -> Iterator[DeviceKind]:
        """The kinds of stages: for each allowed width, one for each way in which devices in a row are linked."""
        allowed = _allowed(sketch, values, self.model)
        for width in allowed:
            for behind in self._alike(width, devices, allowed):
                if (found := self._alone(sketch, values, width, min(behind))) is not None:
                    yield replace(_kind(found, layers, micro_batches), behind=behind)

    def _alike(self, width: int, devices: int, allowed: tuple[int, ...]) -> list[frozenset[int]]:
        """The numbers of devices that stages before one of this width may have, grouped by the devices and the links
        that it then has."""
        reached, found = {0}, dict[tuple[object, ...], set[int]]()
        for start in range(devices - width + 1):
            if start in reached:
                reached |= {start + w for w in allowed}
                ranks = range(start, start + width)
                links = (self.cluster.link((a, a + 1)) for a in ranks[:-1])
                key = *(self.cluster.device(rank) for rank in ranks), *links
                found.setdefault(key, set()).add(start)
        return [frozenset(starts) for starts in found.values()]

    def _alone(self, sketch: Sketch, values: Values, width: int, start: int) -> Unordered | None:
        """The functions of the plan with one stage on so many devices, behind `start` others. None if that is no
        valid plan, or more than that."""
        known = {**sketch.overrides(values), stages_param(sketch): 1}
        key = sketch.source, tuple(sorted(known.items())), width, start
        if key not in self._priced:
            with contextlib.suppress(PlanError):
                self._priced[key] = self._lowered(sketch, known, width, start)
            self._priced.setdefault(key, None)
        return self._priced[key]

    def _lowered(self, sketch: Sketch, known: Mapping[str, int], width: int, start: int) -> Unordered | None:
        call, text = _call(sketch.script), sketch.source.text
        assert call is not None
        text = f"{text[: call.span.start]}[{width}]{text[call.span.end :]}"
        script = parse(Source(sketch.source.name, text))
        plan = read_plan(script, self.model, known, sketch.folder, most=1, orders=False).plan
        if len(plan.meshes) != 1 or plan.devices != width:
            return None
        plan = replace(plan, meshes=(replace(plan.meshes[0], first=start),))
        found = unordered(plan, dict.fromkeys(plan.operators, 0), self.cluster, self.state, self.kernels)
        return found if len(found.program.roles) == 1 else None


def _kind(found: Unordered, layers: list[cuts.Layer], micro_batches: int) -> DeviceKind:
    """The layers of a plan with one stage. What happens to the state counts with it: after each backward, and once a
    step in equal parts for all micro-batches."""
    program, (role,) = found.program, found.program.roles
    priced = cuts.Priced(program, found.prices, layers)
    devices = tuple(role.submesh.ranks())
    slowest = min(found.prices.cluster.devices(devices), key=lambda d: d.achievable_bandwidth())
    state = priced.state()
    each = found.state_bytes(0) / max(1.0, sum(state))
    costs, flats = found.prices.costs, program.flats
    scatters, starts = (
        sum(costs.of(kind(flat.number), role).time_s for flat in flats) for kind in (ScatterGrads, StartReduce)
    )
    beside = scatters + (costs.of(Update(), role).time_s + starts) / micro_batches
    beside /= max(1.0, sum(state))
    seconds, forward = priced.seconds(slowest, role.submesh)
    seconds = tuple(t + beside * b for t, b in zip(seconds, state, strict=True))
    capacity = capacity_bytes(program, role, found.prices.cluster)
    return DeviceKind(len(devices), seconds, forward, tuple(each * b for b in state), tuple(priced.kept()), capacity)


def _scratch(base: cuts.Priced, role: int, report: Report) -> float:
    """The bytes of a stage beside its state and its activations."""
    device = next(d for d in report.devices if d.name == base.program.roles[role].name)
    state = state_bytes(base.program, base.prices.state, base.program.roles[role])
    return max(0.0, device.peak_bytes - dict(device.peak_parts).get("activations", 0) - state)


def _own_step_s(row: LayerRow, starts: tuple[int, ...], plan: Plan) -> float:
    """The seconds of the plan's own stages by the same formula; infinite where they are none of these kinds."""
    kinds = []
    for mesh in plan.meshes:
        same = (n for n, k in enumerate(row.kinds) if k.devices == mesh_size(mesh) and mesh.first in (k.behind or ()))
        if (kind := next(same, None)) is None:
            return inf
        kinds.append(kind)
    return row.step_s(starts, kinds)


def _allowed(sketch: Sketch, values: Values, model: ModelIndex) -> tuple[int, ...]:
    """The widths that the plan allows under some values. Raises PlanError."""
    call, text = _call(sketch.script), sketch.source.text
    assert call is not None
    at = call.arguments[2].span
    script = parse(Source(sketch.source.name, f"{text.rstrip()}\nlet {ALLOWED} = {text[at.start : at.end]}\n"))
    found = interpret_part(script, model, sketch.overrides(values), sketch.folder).scope.values[ALLOWED]
    return tuple(dict.fromkeys(n for n in found if is_whole(n))) if is_list(found) else ()


def _call(script: nodes.Script) -> nodes.Call | None:
    """The one call that gives stages their widths, if it has no `each` yet and its number of stages is a param."""
    calls = [call for _, call in nodes.calls_of(script, (WIDTHS,))]
    if len(calls) != 1 or len(calls[0].arguments) != 3 or _name(calls[0].arguments[1]) not in script.params:
        return None
    return calls[0]


def _name(e: nodes.Expr | nodes.Keyed) -> str:
    return e.text if isinstance(e, nodes.NameExpression) else ""
