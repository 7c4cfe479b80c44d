"""The compiler from end to end: a plan's file and a model's graph become a plan and its program."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.ir.program import Kernels, Program
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lower.lower import After, lower
from ssdsl.lower.stages import Held
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import interpret_all, read_plan
from ssdsl.plan.model_index import index_model
from ssdsl.plan.neighbours.carry_over import carry_over
from ssdsl.plan.neighbours.refit import Keep
from ssdsl.plan.plan import Plan
from ssdsl.prove.prove import require_proof
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled, Workspace

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model, Outputs


@paused_collector()
def make_plan(
    source: Source, graph: Graph, overrides: Mapping[str, int], folder: Path | None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """The plan that a text describes for this model, with warnings. `use` statements look in `folder`. Raises
    PlanError."""
    return interpret_all(parse(source), graph, overrides, folder)


def compile_plan(
    path: Path,
    graph: Graph,
    overrides: Mapping[str, int],
    cluster: Cluster | None = None,
    kernels: Kernels = Kernels.EAGER,
) -> Compiled:
    """The plan of a file and its program, whose operators run as `kernels` says; raises PlanError."""
    return compile_source(read_source(path), graph, overrides, path.parent, cluster, kernels=kernels)


def compile_source(
    source: Source,
    graph: Graph,
    overrides: Mapping[str, int],
    folder: Path | None,
    cluster: Cluster | None = None,
    after: After | None = None,
    kernels: Kernels = Kernels.EAGER,
) -> Compiled:
    """As `compile_plan`, but from a text. `after` is called after each pass, with the pass's name and its result.

    The program is proved. Raises PlanError, also with the steps of the proof that fail.
    """
    return Workspace(graph, cluster, kernels).compile(source, overrides, folder, after)


def compile_resized(training: Compiled, graph: Graph, cluster: Cluster | None = None) -> Compiled:
    """Compiles a training step for the same model with a batch of another size: `graph` is its graph, the operators run
    where the plan of `training` puts them, the weights are the same. Raises PlanError."""
    program = _carried(training, graph, cluster, trains=True)
    return Compiled(training.source, program.plan, program, require_proof(program), ())


def compile_evaluation(
    training: Compiled, model: "Model", outputs: "Outputs" = (), cluster: Cluster | None = None
) -> Compiled:
    """Compiles the forward of a model in eval mode: its operators run where the plan of `training` puts them, on the
    same weights. The batch may have another size.

    `outputs` names results beside the loss: attributes or keys of what the forward returns, or positions in its tuple;
    None means all tensors that it returns, with a warning of what is none. Raises PlanError. Warnings of the plan are
    left out: they were given for training.
    """
    from ssdsl.model.evaluation import capture_evaluation, left_out  # which loads torch

    graph = capture_evaluation(model, outputs, training.program.graph)
    program = _carried(training, graph, cluster, trains=False)
    return Compiled(training.source, program.plan, program, require_proof(program), left_out(graph))


def compile_lossless(
    source: Source,
    graph: Graph,
    overrides: Mapping[str, int],
    folder: Path | None,
    cluster: Cluster | None = None,
    kernels: Kernels = Kernels.EAGER,
) -> Compiled:
    """As `compile_source`, with compressions that keep all numbers: the plan then trains the model without them."""
    plan = read_plan(parse(source), index_model(graph, lossless=True), overrides, folder).plan
    program = lower(plan, cluster, kernels=kernels)
    return Compiled(source, plan, program, require_proof(program), ())


def _carried(training: Compiled, graph: Graph, cluster: Cluster | None, *, trains: bool) -> Program:
    """The program of another graph, which keeps as much of the plan's parts as compiles: stated regions, else unequal
    runs, else equal ones."""
    held = Held(training.program.params, training.program.flats)
    if training.plan.altered is not None:
        graph = training.plan.altered.of(graph)
    tried: Plan | None = None
    failed: PlanError | None = None
    for keep in get_args(Keep):
        plan = carry_over(training.plan, graph, trains=trains, keep=keep)
        if tried is not None and plan.operators == tried.operators:
            continue
        try:
            return lower(plan, cluster, held=held, trains=trains, kernels=training.program.kernels)
        except PlanError as error:
            tried, failed = plan, error
    assert failed is not None
    raise failed
