"""Launches the program of a compiled plan and returns its measurements: the common parts of `run`, `verify` and
`profile`."""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ssdsl.cli.pipeline import LoadedPlan
from ssdsl.cli.terminal import show_diagnostics, talk
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.kernel_choice import KernelChoice
    from ssdsl.model.captured import Captured
    from ssdsl.model.graph import Graph
    from ssdsl.model.load.model import Model
    from ssdsl.run.launch import Nodes
    from ssdsl.run.results import RunResult
    from ssdsl.runtime.options import Training
    from ssdsl.workspace import Compiled


def train(
    loaded: LoadedPlan,
    compiled: "Compiled",
    training: "Training",
    folder: Path,
    processes: int | None,
    dump: bool,
    nodes: "Nodes | None" = None,
    per_node: int | None = None,
    max_restarts: int = 0,
    evaluation: "Compiled | None" = None,
) -> "RunResult":
    """Writes the program into `folder`, starts it, and returns its results, which are written there as well.

    `processes` is the number that one machine may start at most, `per_node` the number that the user gave for each, and
    `dump` asks for all tensors. Raises PlanError.
    """
    from ssdsl.run.launch import ONE_NODE, launch

    devices, nodes = compiled.plan.devices, nodes or ONE_NODE
    _check(loaded, compiled, processes, nodes, per_node)
    check_sparse(loaded.graph, training)
    write(loaded, compiled, folder / "program", evaluation)
    out = folder / "results"
    return launch(
        folder / "program",
        training,
        processes=devices,
        out=out,
        dump=dump,
        console=talk,
        nodes=nodes,
        max_restarts=max_restarts,
    )


def compared(loaded: LoadedPlan) -> LoadedPlan:
    """The plan, after its graph was compared with the module, if that was not done yet."""
    loaded.check_has_model()
    return replace(loaded, captured=compared_model(loaded.captured))


def compared_model(captured: "Captured") -> "Captured":
    """A model, after its graph was compared with the module, if that was not done yet. A graph from the cache is
    compared again, because the trained module may have changed. Raises PlanError for a model that cannot train."""
    if captured.is_compared and captured.built is not None:
        return captured
    from ssdsl.model.checks.check_capture import check_capture
    from ssdsl.model.load.model import computing

    model = captured.model
    comparison = check_capture(computing(model), captured.graph)
    return replace(captured, comparison=str(comparison), built=model)


def check_numbers(model: "Model") -> None:
    """Raises PlanError if the model has no numbers to train."""
    from ssdsl.run.errors import ModelWithoutNumbers

    if not model.can_run:
        raise PlanError(ModelWithoutNumbers(None, model.name))


def check_optimizer(asked: str) -> None:
    """Raises typer.BadParameter for an optimizer that torch does not have, and for options that it does not take."""
    from ssdsl.lang.suggest import suggest
    from ssdsl.runtime.train.optimizer import asked_optimizer, optimizers

    name = asked.partition(",")[0]
    if name.lower() not in (known := optimizers()) and (hint := suggest(name.lower(), known)):
        raise typer.BadParameter(f"there is no optimizer `{name}`: {hint}", param_hint="'--optimizer'")
    try:
        asked_optimizer(asked)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--optimizer'") from None


def check_kernels(kernels: "KernelChoice", device: str) -> None:
    """Raises PlanError for compiled kernels where torch cannot compile; says where a mode changes nothing."""
    if kernels.word != "compiled" or device != "cpu":
        return
    from ssdsl.run.errors import NoCompiler
    from ssdsl.runtime.errors import EngineError
    from ssdsl.runtime.kernels.compiled import check_compiler, without_graphs

    if said := without_graphs(kernels.mode):
        talk.print(said, markup=False, highlight=False)
    try:
        check_compiler()
    except EngineError as error:
        raise PlanError(NoCompiler(None, error.reason, error.help)) from None


def check_link(text: str | None, device: str, nodes: int) -> None:
    """Raises typer.BadParameter for an emulated network whose speed cannot be read, and PlanError for one that cannot
    join these ranks."""
    if text is None:
        return
    from ssdsl.run.errors import LinkElsewhere
    from ssdsl.runtime.link.speed import Speed, WrongLink

    try:
        Speed.read(text)
    except WrongLink as error:
        raise typer.BadParameter(str(error), param_hint="'--link'") from None
    if device != "cpu":
        raise PlanError(LinkElsewhere(None, "the ranks compute on GPUs", "run on processors: --device cpu"))
    if not hasattr(os, "memfd_create"):
        raise PlanError(LinkElsewhere(None, "it needs memory of Linux", "run on Linux, for instance in a container"))
    if nodes > 1:
        raise PlanError(LinkElsewhere(None, f"the run is on {nodes} machines", "leave out --nnodes, or --link"))


def chosen_nodes(count: int, rank: int, endpoint: str | None) -> "Nodes":
    """The machines of the command line; this one is number `rank`. They meet at `endpoint`, HOST:PORT. Raises
    typer.BadParameter."""
    from ssdsl.run.launch import Nodes

    if rank >= count:
        raise typer.BadParameter(f"{count} machines have the numbers 0 to {count - 1}", param_hint="'--node-rank'")
    host, _, port = (endpoint or "").rpartition(":")
    if (count > 1 or endpoint is not None) and not (host and port.isdecimal()):
        reason = "say where the machines meet" if endpoint is None else f"`{endpoint}` is not HOST:PORT"
        raise typer.BadParameter(f"{reason}, as in node0:29500", param_hint="'--rdzv-endpoint'")
    return Nodes(count, rank, endpoint or "")


def write(loaded: LoadedPlan, compiled: "Compiled", folder: Path, evaluation: "Compiled | None" = None) -> None:
    """Writes the program, and that of the evaluation. Raises PlanError if the folder belongs to another run, or cannot
    be written."""
    from ssdsl.codegen.write import write_program

    with _writing_program(folder):
        evaluates = evaluation.program if evaluation is not None else None
        model = None if loaded.captured.origin else loaded.model
        write_program(compiled.program, model, folder, compiled.source, evaluates)


def check_program_folder(folder: Path) -> None:
    """Raises PlanError for a folder that takes no program, so that this is known before long work."""
    from ssdsl.codegen.write import check_free

    with _writing_program(folder):
        check_free(folder)


@contextmanager
def _writing_program(folder: Path) -> Iterator[None]:
    """A context in which a folder that takes no program becomes a diagnostic."""
    from ssdsl.run.errors import FolderInUse
    from ssdsl.run.failures import writing

    with writing(folder):
        try:
            yield
        except FileExistsError as error:
            raise PlanError(FolderInUse(None, str(folder))) from error


def _check(
    loaded: LoadedPlan, compiled: "Compiled", processes: int | None, nodes: "Nodes", per_node: int | None
) -> None:
    """Raises PlanError if the model has no numbers to train, or if the numbers of processes and devices do not
    agree."""
    from ssdsl.run.errors import NodesMisfit, TooFewProcesses

    plan = compiled.plan
    check_numbers(loaded.model)
    if plan.devices % nodes.count or per_node not in (None, plan.devices // nodes.count):
        raise PlanError(NodesMisfit.of(plan.meshes[-1].span, plan.devices, nodes.count, per_node))
    allowed, here = processes or max(16, 2 * (os.cpu_count() or 1)), plan.devices // nodes.count
    if here > allowed:
        raise PlanError(TooFewProcesses(plan.meshes[-1].span, here, allowed))


def check_sparse(graph: "Graph", training: "Training") -> None:
    """Raises PlanError if the optimizer cannot take the model's sparse gradients, so that not even one device could
    train."""
    from ssdsl.model.capture.sparse_gradients import sparse_weights
    from ssdsl.run.errors import SparseGradients
    from ssdsl.runtime.train.check_optimizer import refuses_sparse
    from ssdsl.runtime.train.optimizer import asked_optimizer

    if weights := sparse_weights(graph):
        _, make, options = asked_optimizer(training.optimizer)
        if reason := refuses_sparse(make, {"lr": training.lr, **options}):
            raise PlanError(SparseGradients(None, weights[0], make.__name__, reason))


@contextmanager
def workplace(out: str | None, nodes: "Nodes | None" = None) -> Iterator[Path]:
    """A context with the folder of a run: that of `--out`, which no other run may use meanwhile, or a temporary one.

    Each of several nodes has its own folder inside that of `--out`, because they may share a disk.
    """
    from ssdsl.run.failures import writing
    from ssdsl.run.one_run import one_run, temporary_run

    with ExitStack() as stack:
        if out is None:
            with writing(Path(os.environ.get("TMPDIR", "/tmp"))):
                folder = stack.enter_context(temporary_run())
        else:
            folder = Path(out).resolve()
            if nodes is not None and nodes.count > 1:
                folder = folder / f"node{nodes.rank}"
            with writing(folder):
                stack.enter_context(one_run(folder))
        yield folder


def warn_of_nothing(result: "RunResult", steps: int) -> None:
    """Shows a warning if the run continued a checkpoint that already has `steps` steps."""
    from ssdsl.run.errors import NothingToTrain

    if not result.steps:
        show_diagnostics([NothingToTrain(None, result.first, steps)])


def writable(folder: str) -> Path:
    """The absolute path of a folder for results, created if need be. Raises PlanError if it cannot be written, so that
    this is known before long work."""
    from ssdsl.run.failures import writing

    path = Path(folder).absolute()  # because processes may start in another folder
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    return path


def warn_of_losses(result: "RunResult", lr: float) -> None:
    """Shows a warning if the loss is no longer a finite number."""
    from ssdsl.run.errors import LossNotFinite

    for step, loss in enumerate(result.losses, result.first):
        if not math.isfinite(loss):
            show_diagnostics([LossNotFinite(None, str(loss), step, lr)])
            return
