"""Simulates settings of sketches, and proves those that are to be shown."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.program import Kernels
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import read_plan
from ssdsl.plan.plan import Plan
from ssdsl.record import replace
from ssdsl.simulate.profile.read_costs import CostsFile, costs_for, recording
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import Timeline
from ssdsl.sketch.by import By
from ssdsl.sketch.family import family
from ssdsl.sketch.result import Tried
from ssdsl.sketch.setting import Setting
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.text.diagnostic import PlanError
from ssdsl.workspace import Candidate, Workspace

T = TypeVar("T")


@dataclass(slots=True)
class LastAnswer(Generic[T]):
    """Answers for settings of sketches; remembers the last one."""

    make: Callable[[Sketch, Values], T]
    known: tuple[Sketch, Values, T] | None = None

    def of(self, sketch: Sketch, values: Values) -> T:
        """The answer for a setting."""
        if self.known is None or self.known[0] is not sketch or self.known[1] != values:
            self.known = sketch, dict(values), self.make(sketch, values)
        return self.known[2]


@dataclass
class Simulations:
    """Compiles, simulates and proves settings for a model on a cluster, in one workspace.

    `memory` is the share of each device's memory that a plan may need. With `costs`, steps are simulated by measured
    times, and plans that need operators without one are refused. `believed` are the keys of proved settings.
    """

    graph: Graph
    cluster: Cluster
    state: StatePrecision = MIXED
    memory: float = 1.0
    costs: CostsFile | None = None
    kernels: Kernels = Kernels.EAGER
    by: By = By.DEVICES
    workspace: Workspace = field(init=False)
    believed: set[Hashable] = field(default_factory=set)
    _candidates: LastAnswer[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        measured_here = self.costs is not None and self.cluster.shares_cores
        links = None if measured_here else self.cluster  # as the measured runs
        self.workspace = Workspace(self.graph, links, self.kernels)
        self._candidates = LastAnswer(self._formed)

    def simulated(self, sketch: Sketch, values: Values) -> Tried:
        """A simulated setting, or a refused one. Its timeline is simulated again when it is asked for."""
        known = sketch.overrides(values)
        words = {name: known[name] for name in sketch.script.numbers if name in known}
        try:
            plan, report = self._step(sketch, values, words)
        except PlanError as error:
            return Tried(sketch, values, Setting(words, refused=error.diagnostics[0], by=self.by))

        def timeline() -> Timeline:
            return self._step(sketch, values, words)[1].timeline

        over = [d.peak_bytes - int(self.memory * d.capacity_bytes) for d in report.devices if d.capacity_bytes]
        setting = Setting(words, replace(report, draw=timeline), by=self.by)
        return Tried(sketch, values, setting, family(plan), max(0, *over, 0))

    def proved(self, tried: Tried) -> Tried:
        """The setting after its proof; if that fails, with the reason (`unproved`)."""
        key = setting_key(tried)
        if tried.setting.refused is not None or key in self.believed:
            return tried
        try:
            self.workspace.proved(self.candidate_of(tried))
        except PlanError as error:
            return replace(tried, unproved=error.diagnostics[0])
        self.believed.add(key)
        return tried

    def candidate(self, sketch: Sketch, values: Values) -> Candidate:
        """The unproved program of a setting; remembers the last one. Raises PlanError."""
        return self._candidates.of(sketch, values)

    def candidate_of(self, tried: Tried) -> Candidate:
        """The unproved program of a setting that was simulated."""
        return self.candidate(tried.sketch, open_values(tried))

    def _formed(self, sketch: Sketch, values: Values) -> Candidate:
        reading = read_plan(sketch.script, self.workspace.model, sketch.overrides(values), sketch.folder, most=1)
        return self.workspace.formed(reading)

    def _step(self, sketch: Sketch, values: Values, words: Mapping[str, int]) -> tuple[Plan, Report]:
        """The plan of a setting, and its simulated step. Raises PlanError."""
        candidate, times = self.candidate(sketch, values), None
        if self.costs is not None:
            setting = ",".join([sketch.source.name, *(f"{name}={value}" for name, value in words.items())])
            program = candidate.lowered.program
            command = recording(program, setting, self.costs.file)
            times = costs_for(program, self.costs, command, self.cluster, self.state)
        return candidate.plan, self.workspace.simulate(candidate, self.cluster, times, self.state)


def setting_key(tried: Tried) -> Hashable:
    """Equal for the same values of the same sketch."""
    sketch = tried.sketch
    return sketch.source, tuple(sketch.fixed.items()), tuple(tried.opened.items())


def open_values(tried: Tried) -> Values:
    """The values that are not in the sketch already."""
    known = {*tried.sketch.script.numbers} - tried.sketch.set_by_user
    return {name: value for name, value in tried.opened.items() if name in known}
