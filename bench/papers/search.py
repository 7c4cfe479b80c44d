"""A strategy's best setting on a number of devices: what fits, and of that the fastest step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.papers.comparisons import Comparison, Settings, Strategy
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.ir.program import Kernels
from ssdsl.lang.shipped import plan_path
from ssdsl.model.graph import Graph
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.sketch.search import search_of
from ssdsl.sketch.texts import read_texts
from ssdsl.text.diagnostic import PlanError

Say = Callable[[str], None]
KERNELS = Kernels.FUSED  # those of the papers' frameworks


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting and its simulated step; `peak_bytes` of `capacity_bytes` on the fullest device."""

    settings: Settings
    step_s: float
    bubble: float
    peak_bytes: int
    capacity_bytes: int
    traffic_bytes: int
    between_nodes_bytes: int

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{settings}: {self.step_s:.1f} s, {self.peak_bytes / 1e9:.1f} of {self.capacity_bytes / 1e9:.1f} GB"


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest setting that fits, of which plan; where none does, that which lacks least. `tried` were tried."""

    plan: str
    best: Tried
    tried: int


def search(strategy: Strategy, comparison: Comparison, graph: Graph, devices: int, say: Say) -> Found | None:
    """None where the compiler refuses the plan in all its settings; `say` hears of each."""
    tried = []
    for shape in strategy.shapes(devices):
        for now in _of_shape(strategy, shape, graph, comparison):
            say(f"{strategy.plan} {now}")
            tried.append(now)
    if not tried:
        return None
    fitting = [t for t in tried if t.fits]
    best = min(fitting, key=lambda t: t.step_s) if fitting else min(tried, key=lambda t: t.peak_bytes)
    return Found(strategy.plan, best, len(tried))


def _of_shape(strategy: Strategy, shape: Settings, graph: Graph, comparison: Comparison) -> Iterator[Tried]:
    """Leaves out what takes more memory than what does not fit, and micro-batches larger than one that is slower."""
    for choice in strategy.choices:
        fastest: Tried | None = None
        for count in strategy.micro_batches(shape, comparison.batch):
            now = _try(strategy.plan, {**shape, **choice, **count}, graph, comparison.cluster)
            if now is None:
                break
            yield now
            if not now.fits or (fastest is not None and now.step_s >= fastest.step_s):
                break
            fastest = now
        if fastest is None:
            return


def _try(plan: str, settings: Settings, graph: Graph, cluster: str) -> Tried | None:
    try:
        report = simulated(plan, settings, graph, cluster)
    except PlanError:
        return None
    return _tried(settings, report)


def searched(sketches: Sequence[str], on: str, graph: Graph, devices: int, say: Say) -> Found | None:
    """What `ssdsl search` finds for sketches on exactly so many devices; `tried` are the plans that it simulated."""
    cluster, wanted = load_cluster(on), range(devices, devices + 1)
    work = search_of(graph, cluster, read_texts(sketches, None), wanted, {}, kernels=KERNELS)
    *_, last = work.results()
    found = work.proved(last, 1)
    if found.best is None:
        return None
    plan, best = found.best.sketch.name, _tried(found.best.values, found.best.report)
    say(f"{plan} {best}")
    return Found(plan, best, len(found.tried))


def _tried(settings: Settings, report: Report) -> Tried:
    fullest = max(report.devices, key=lambda d: d.peak_bytes / (d.capacity_bytes or 1))
    between = sum(t.size_bytes for t in report.traffic if t.level == "cluster")
    total = sum(t.size_bytes for t in report.traffic)
    memory = fullest.peak_bytes, fullest.capacity_bytes or 0
    return Tried(settings, report.step_s, report.bubble, *memory, total, between)


def simulated(plan: str, settings: Settings, graph: Graph, on: str) -> Report:
    """A step of a shipped plan on a cluster; raises PlanError."""
    cluster = load_cluster(on)
    compiled = compile_plan(plan_path(plan), graph, settings, cluster, KERNELS)
    return simulate(compiled.program, compiled.source, cluster)
