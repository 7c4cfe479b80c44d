"""From the words of the command line to a captured model, a plan, a program: what the commands have in common.

The plan is read before torch is loaded, so that a mistake in its text shows at once.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cli.names import plan_path
from ssdsl.cli.terminal import show_diagnostics, talk

if TYPE_CHECKING:
    from ssdsl.compile import Compiled
    from ssdsl.model.graph import Graph
    from ssdsl.model.source import Model
    from ssdsl.plan.plan import Plan
    from ssdsl.simulate.report import Report


@dataclass(frozen=True)
class Loaded:
    """A plan's path, and the model with its captured graph."""

    path: Path
    model: "Model"
    graph: "Graph"


def load(plan: str, model: str, seed: int = 0) -> Loaded:
    """Check that the plan parses, then load and capture the model."""
    from ssdsl.lang.parse import parse
    from ssdsl.lang.read import read_source

    path = plan_path(plan)
    parse(read_source(path))
    return Loaded(path, *captured(model, seed))


def captured(model: str, seed: int = 0) -> "tuple[Model, Graph]":
    """A model and its graph."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are built from their configs: nothing is ever downloaded
    with working("loading torch"):
        from ssdsl.model.load import load as load_model
        from ssdsl.model.trace import capture
    with working(f"capturing {model}"):
        loaded = load_model(model, seed=seed)
        return loaded, capture(loaded)


def planned(loaded: Loaded, overrides: Mapping[str, int]) -> "Plan":
    """The plan for the model; its warnings are shown."""
    from ssdsl.compile import make_plan

    plan, warnings = make_plan(loaded.path, loaded.graph, overrides)
    show_diagnostics(warnings)
    return plan


def compiled(loaded: Loaded, overrides: Mapping[str, int]) -> "Compiled":
    """The plan with its schedule; its warnings are shown."""
    from ssdsl.compile import compile_plan

    with working("compiling"):
        result = compile_plan(loaded.path, loaded.graph, overrides)
    show_diagnostics(result.warnings)
    return result


def simulated(program: "Compiled", cluster: str = "laptop", costs: str | None = None) -> "Report":
    """A step of the program on a cluster; with `costs`, by the times of that file."""
    from ssdsl.cli.clusters import chosen_cluster
    from ssdsl.simulate.measured import Measured
    from ssdsl.simulate.read_costs import read_costs
    from ssdsl.simulate.simulate import simulate

    chosen = chosen_cluster(cluster)
    times = Measured(program.schedule, read_costs(Path(costs))) if costs is not None else None
    with working("simulating"):
        return simulate(program.schedule, program.source, chosen, times)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what takes so long."""
    if not talk.is_terminal:
        yield
        return
    with talk.status(what):
        yield
