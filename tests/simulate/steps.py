"""Plans compiled for models that are captured once, and their steps on a cluster."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.ir.program import Kernels, Program
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.price.costs import Costs
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.roofline import Roofline
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.workspace import Compiled
from tests.captured import captured

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDERS = (HERE / "plans", *(ROOT / name for name in ("tests/verify/plans", "examples", "bench/foresight/plans")))
UNIT = Times(1.0, 1.0, 1.0)


def model_of(spec: str, meta: bool = False) -> Model:
    """A model by its name as on the command line; a user's file is one of this folder or of tests/models."""
    return captured(_named(spec), meta)[0]


def graph_of(spec: str, meta: bool = False) -> Graph:
    """Its graph."""
    return captured(_named(spec), meta)[1]


def _named(spec: str) -> str:
    return str(HERE / spec) if ".py:" in spec and (HERE / spec.partition(":")[0]).exists() else spec


@cache
def cluster_of(name: str) -> Cluster:
    return load_cluster(name)


def compiled(plan: str, spec: str, *, meta: bool = False, kernels: Kernels = Kernels.EAGER, **params: int) -> Compiled:
    """A plan of this folder, of tests/verify or of the examples."""
    return _compiled(plan, spec, meta, kernels, tuple(sorted(params.items())))


@cache
def _compiled(plan: str, spec: str, meta: bool, kernels: Kernels, params: tuple[tuple[str, int], ...]) -> Compiled:
    path = next(p for folder in FOLDERS if (p := folder / f"{plan}.ssp").exists())
    return compile_plan(path, graph_of(spec, meta), dict(params), kernels=kernels)


def step(found: Compiled, costs: Costs | Times | None = None, cluster: str | Cluster = "a100x1024") -> Report:
    """One simulated step; `costs`, if not given, are a roofline's."""
    chosen = cluster_of(cluster) if isinstance(cluster, str) else cluster
    if isinstance(costs, Times):
        costs = Measured(found.program, costs)
    return simulate(found.program, found.source, chosen, costs)


def activations(program: Program, *, fuses: bool = False) -> Activations:
    """What the functions of a program keep, by default as eager PyTorch does."""
    facts = ProgramIndex(replace(program, kernels=Kernels.FUSED) if fuses else program)
    return Activations(facts, Fusion(facts))


def roofline(facts: ProgramIndex, cluster: str) -> Roofline:
    """The costs of a program's actions on a cluster."""
    return Roofline(facts, cluster_of(cluster), Fusion(facts))


def peak(report: Report, part: str) -> list[int]:
    """Of each role, how much of its fullest moment is of this part."""
    return [dict(d.peak_parts).get(part, 0) for d in report.devices]


def traffic(report: Report) -> Mapping[str, tuple[int, int]]:
    """Calls and bytes of all devices by kind, over all levels."""
    found: dict[str, tuple[int, int]] = {}
    for t in report.traffic:
        calls, size = found.get(t.kind, (0, 0))
        found[t.kind] = calls + t.calls, size + t.size_bytes
    return found
