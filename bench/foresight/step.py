"""A simulated step of a plan for one of the models here."""

import os
from functools import cache
from pathlib import Path

from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.device import Overlap
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.ir.program import Kernels
from ssdsl.lang.shipped import plan_path
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.workspace import Compiled

MODELS = Path(__file__).parent / "models.py"


def step(
    plan: str,
    model: str,
    cluster: str,
    params: dict[str, int],
    state: StatePrecision = MIXED,
    overlap: Overlap | None = None,
    contention: float | None = None,
) -> Report:
    """What `ssdsl simulate PLAN --model bench/foresight/models.py:MODEL --cluster CLUSTER --kernels fused` says, with
    `overlap` and `contention` in the cluster's file. The published numbers are of frameworks with fused kernels."""
    found, machine = compiled(plan, model, cluster, tuple(params.items())), load_cluster(cluster)
    stack = replace(machine, overlap=overlap or machine.overlap)
    if contention is not None:
        groups = (replace(group, device=replace(group.device, contention=contention)) for group in stack.groups)
        stack = replace(stack, groups=tuple(groups))
    return simulate(found.program, found.source, stack, state=state)


@cache
def compiled(plan: str, model: str, cluster: str, params: tuple[tuple[str, int], ...]) -> Compiled:
    return compile_plan(plan_path(plan), graph(model), dict(params), load_cluster(cluster), Kernels.FUSED)


@cache
def graph(model: str) -> Graph:
    """A model of this folder, captured without numbers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return capture(load(f"{MODELS}:{model}", meta=True))
