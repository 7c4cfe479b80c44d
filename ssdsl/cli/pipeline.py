"""The steps that commands share: from the words of the command line to a captured model, a plan and a program.

The plan is parsed before torch is loaded, so that a mistake in its text shows at once.
"""

import gc
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cli.options import keeps_graphs
from ssdsl.cli.terminal import show_diagnostics, talk
from ssdsl.kernel_choice import EAGER, KernelChoice
from ssdsl.lang.shipped import plan_path, shipped_plans
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.analyse.state import StatePrecision
    from ssdsl.cluster.cluster import Cluster
    from ssdsl.lower.lower import After
    from ssdsl.model.captured import Captured
    from ssdsl.model.graph import Graph
    from ssdsl.model.load.model import Model
    from ssdsl.plan.plan import Plan
    from ssdsl.runtime.random.counter_rng import Generator
    from ssdsl.simulate.report import Report
    from ssdsl.text.source import Source
    from ssdsl.workspace import Compiled


class LoadedPlan(Record):
    """A plan's text, which parses, and a captured model."""

    path: Path
    source: "Source"
    captured: "Captured"

    @property
    def graph(self) -> "Graph":
        """The model's graph."""
        return self.captured.graph

    @property
    def model(self) -> "Model":
        """The model itself, built at the first use. Raises PlanError for a graph from a file."""
        self.check_has_model()
        return self.captured.model

    def check_has_model(self) -> None:
        """Raises PlanError for a graph from a file, whose program has no weights to run with."""
        if origin := self.captured.origin:
            from ssdsl.model.graph_errors import GraphWithoutModel

            spec = self.captured.request.spec
            command = shlex.join(["ssdsl", *(origin if word == spec else word for word in sys.argv[1:])])
            raise PlanError(GraphWithoutModel(None, spec, command))

    @property
    def comparison(self) -> str:
        """A sentence on how graph and module were compared."""
        return self.captured.comparison


def load(
    plan: str,
    model: str,
    seed: int = 0,
    generator: "Generator" = "hash",
    meta: bool = False,
    precision: str | None = None,
    trains: bool = False,
) -> LoadedPlan:
    """Parses the plan, then captures the model. All of the model's numbers are made only if it `trains`. Raises
    PlanError."""
    path, source = parsed(plan)
    return LoadedPlan(path, source, captured(model, seed, generator, meta, precision, trains))


def parsed(plan: str) -> "tuple[Path, Source]":
    """The file of a plan, and its text, which parses. Raises PlanError with all mistakes of syntax."""
    from ssdsl.lang.parse import parse
    from ssdsl.lang.read import read_source
    from ssdsl.lang.recover import recovered

    path = plan_path(plan)
    source = read_source(path)
    try:
        parse(source)
    except PlanError:
        raise PlanError(*recovered(source).mistakes) from None
    return path, source


def check_params(plan: str, overrides: Mapping[str, int]) -> None:
    """Raises PlanError if a param is set that the plan does not have, before any model is built."""
    from ssdsl.lang.parse import parse
    from ssdsl.plan.interpret import unknown_params

    if wrong := unknown_params(parse(parsed(plan)[1]), overrides):
        raise PlanError(*wrong)


def captured(
    model: str,
    seed: int = 0,
    generator: "Generator" = "hash",
    meta: bool = False,
    precision: str | None = None,
    trains: bool = False,
) -> "Captured":
    """A model's graph, compared with the model if that takes no time; with `meta` the model is built without
    numbers."""
    from ssdsl.model.captured import ModelRequest
    from ssdsl.model.captured import captured as capture

    found = capture(ModelRequest(model, seed, generator, meta, precision, trains), working, keep=keeps_graphs.on)
    show_diagnostics(found.remarks)
    if found.not_kept:
        said = f"the graph of {model} is not kept for the next command: {found.not_kept}"
        talk.print(said, style="dim", markup=False, soft_wrap=True)
    gc.freeze()  # keeps the garbage collector from traversing a large graph, which stays
    return found


def planned(loaded: LoadedPlan, overrides: Mapping[str, int]) -> "Plan":
    """The plan for the model; shows its warnings."""
    from ssdsl.compile import make_plan

    plan, warnings = make_plan(loaded.source, loaded.graph, overrides, loaded.path.parent)
    show_diagnostics(warnings)
    return plan


def compiled(
    loaded: LoadedPlan,
    overrides: Mapping[str, int],
    after: "After | None" = None,
    cluster: "Cluster | None" = None,
    kernels: KernelChoice = EAGER,
) -> "Compiled":
    """The plan with its program, for a cluster if one is given, whose operators run as `kernels` says; shows its
    warnings."""
    from ssdsl.compile import compile_source

    folder, how = loaded.path.parent, kernels.kernels
    with working("compiling"):
        result = compile_source(loaded.source, loaded.graph, overrides, folder, cluster, after, how)
    show_diagnostics(result.warnings)
    return result


def compiled_for(cluster: "Cluster", costs: str | None) -> "Cluster | None":
    """The cluster for which a program is compiled. With times measured on this machine it is None, as in the measured
    runs."""
    return None if costs is not None and cluster.name == "laptop" else cluster


def evaluation(
    loaded: LoadedPlan, training: "Compiled", outputs: Sequence[str], cluster: "Cluster | None" = None
) -> "Compiled | None":
    """The program of the evaluation. If it cannot be compiled, and no outputs were asked for, shows a warning and
    returns None."""
    from ssdsl.compile import compile_evaluation
    from ssdsl.model.evaluation_errors import EvaluationLeftOut

    try:
        with working("compiling the evaluation"):
            found = compile_evaluation(training, loaded.model, outputs, cluster)
        show_diagnostics(found.warnings)
        return found
    except PlanError as error:
        if outputs:
            raise
        first = error.diagnostics[0]
        show_diagnostics([EvaluationLeftOut(None, first.text(first.title))])
        return None


def state_of(masters: bool, fp32_grads: bool) -> "StatePrecision":
    """The training state of weights (their precision) as the options give it."""
    from ssdsl.analyse.state import StatePrecision

    return StatePrecision(masters, fp32_grads)


def simulated(
    compiled: "Compiled", cluster: "Cluster", costs: str | None = None, state: "StatePrecision | None" = None
) -> "Report":
    """Simulates a step of the program on a cluster; with `costs`, by the times in that file. `state` is the training
    state of weights.

    Raises PlanError if the file does not fit the program.
    """
    from ssdsl.analyse.state import MIXED
    from ssdsl.simulate.profile.partly_profiled import PartlyProfiled
    from ssdsl.simulate.profile.read_costs import costs_for, read_costs, recording
    from ssdsl.simulate.simulate import simulate

    times = None
    if costs is not None:
        command = recording(compiled.program, worded(compiled), costs)
        times = costs_for(compiled.program, read_costs(Path(costs)), command, cluster, state or MIXED)
    with working("simulating"):
        report = simulate(compiled.program, compiled.source, cluster, times, state or MIXED)
    return replace(report, coverage=times.coverage()) if isinstance(times, PartlyProfiled) else report


def tried(
    loaded: LoadedPlan,
    overrides: Mapping[str, int],
    cluster: "Cluster",
    costs: str | None,
    state: "StatePrecision",
    kernels: KernelChoice,
    text: str,
) -> "Report":
    """The simulated step of another text of the plan; raises PlanError if it is refused."""
    from ssdsl.compile import compile_source
    from ssdsl.text.source import Source

    source, folder = Source(loaded.source.name, text), loaded.path.parent
    with working("trying a change of the plan"):
        on = compiled_for(cluster, costs)
        other = compile_source(source, loaded.graph, overrides, folder, on, kernels=kernels.kernels)
    return simulated(other, cluster, costs, state)


def fits(compiled: "Compiled", report: "Report") -> bool:
    """Whether the devices have enough memory for a simulated step; shows a message if not, or if only just."""
    from ssdsl.show.advice.capacity import capacity

    found = capacity(compiled.program, compiled.source, report)
    show_diagnostics(found)
    return all(d.severity != "error" for d in found)


def worded(compiled: "Compiled") -> str:
    """A plan with its settings, in the form of an argument of `ssdsl profile`: `pipeline,S=2,M=4`."""
    path = Path(compiled.source.name)
    shipped = dict(shipped_plans()).get(path.stem)
    name = path.stem if shipped is not None and shipped.resolve() == path.resolve() else str(path)
    return ",".join([name, *(f"{param}={value}" for param, value in compiled.plan.params.items())])


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on a terminal what the command is working on."""
    if not talk.is_terminal:
        yield
        return
    with talk.status(what):
        yield
