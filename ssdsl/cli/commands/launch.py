"""`ssdsl launch`: writes the file with which a scheduler starts a plan, or a training script, on many nodes."""

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.options import refuse_unused, settings
from ssdsl.cli.pipeline import compiled, evaluation, load, working
from ssdsl.cli.terminal import talk
from ssdsl.cli.training import write
from ssdsl.lang.save import FileMark, check_file
from ssdsl.lang.suggest import joined
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.cluster.cluster import Cluster as Links

FORMS = {  # options that are not for every scheduler
    "time": ("slurm",),
    "partition": ("slurm",),
    "account": ("slurm",),
    "image": ("kubernetes",),
    "claim": ("kubernetes",),
    "folder": ("kubernetes",),
    "port": ("slurm", "torchrun"),
    "requeue": ("slurm", "kubernetes"),
}

Target = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="A plan (with --model), a compiled folder, or a training script of your own."),
]
OptionalModel = Annotated[
    str | None, typer.Option("--model", "-m", metavar="NAME[:SIZE]", help="The plan's model, as for `ssdsl compile`.")
]
Rest = Annotated[list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Given to the program as they are.")]
Slurm = Annotated[bool, typer.Option("--slurm", help="A batch file for `sbatch`.")]
Kubernetes = Annotated[bool, typer.Option("--kubernetes", help="A PyTorchJob for `kubectl apply` (Kubeflow).")]
Ray = Annotated[bool, typer.Option("--ray", help="A script for `ray job submit`.")]
Torchrun = Annotated[bool, typer.Option("--torchrun", help="The command to type on each node.")]
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write there.", show_default="print")]
Program = Annotated[
    str | None,
    typer.Option("--program", metavar="DIR", help="The folder for the plan's program.", show_default="PLAN-program"),
]
Cluster = Annotated[
    str | None,
    options.cluster_option("Says how many devices a node has, and what communication is cheapest."),
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.", show_default="as many as needed")]
PerNode = Annotated[
    int | None,
    typer.Option("--gpus-per-node", min=1, help="Processes on each.", show_default="the cluster's, or 8 at most"),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Training steps.", show_default="the program's")]
Name = Annotated[str | None, typer.Option("--name", help="The name of the job.", show_default="the plan's")]
Time = Annotated[str, typer.Option("--time", metavar="H:MM:SS", help="Slurm: the longest that it may take.")]
Partition = Annotated[str, typer.Option("--partition", help="Slurm: the queue.", show_default=False)]
Account = Annotated[str, typer.Option("--account", help="Slurm: who pays.", show_default=False)]
Image = Annotated[str, typer.Option("--image", help="Kubernetes: with torch, and what the program imports.")]
Claim = Annotated[str, typer.Option("--claim", help="Kubernetes: a volume claim with the program.", show_default=False)]
Folder = Annotated[str, typer.Option("--folder", help="Kubernetes: where that is, or what in the image has it.")]
Requeue = Annotated[
    bool,
    typer.Option("--requeue", help="Save before the scheduler ends the job, and go on in another one."),
]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="A free port of the first node.")]


def launch(
    context: typer.Context,
    target: Target,
    set_: options.Set,
    rest: Rest = None,
    model: OptionalModel = None,
    slurm: Slurm = False,
    kubernetes: Kubernetes = False,
    ray: Ray = False,
    torchrun: Torchrun = False,
    out: Out = None,
    program: Program = None,
    cluster: Cluster = None,
    nodes: Nodes = None,
    gpus_per_node: PerNode = None,
    steps: Steps = None,
    device: options.OnDevice = "cuda",
    max_restarts: options.Restarts = 0,
    name: Name = None,
    time: Time = "1:00:00",
    partition: Partition = "",
    account: Account = "",
    image: Image = "pytorch/pytorch:latest",
    claim: Claim = "",
    folder: Folder = "/workspace",
    port: Port = 29500,
    requeue: Requeue = False,
    seed: options.Seed = 0,
    meta: options.Meta = False,
) -> None:
    """Write the file with which Slurm, Kubernetes or Ray starts a plan's program, or a script of your own.

    All use torchrun, once on each node. The number of processes follows from the plan; its program is compiled into a
    folder, which has to be where the nodes see it.
    """
    from ssdsl.run.jobs.job import Job, torchrun_text
    from ssdsl.run.jobs.kubernetes import kubernetes_text
    from ssdsl.run.jobs.ray import ray_text
    from ssdsl.run.jobs.slurm import slurm_text

    forms = {"slurm": slurm_text, "kubernetes": kubernetes_text, "ray": ray_text, "torchrun": torchrun_text}
    asked = {"slurm": slurm, "kubernetes": kubernetes, "ray": ray, "torchrun": torchrun}
    chosen = [form for form, wanted in asked.items() if wanted]
    if len(chosen) != 1:
        raise typer.BadParameter("choose one of --slurm, --kubernetes, --ray and --torchrun", param_hint="'--slurm'")
    others = {name: joined([f"--{form}" for form in of], "and") for name, of in FORMS.items() if chosen[0] not in of}
    refuse_unused(context, {name: f"it is for {of}" for name, of in others.items()})
    if (why := _compiles_nothing(Path(target))) is not None:
        refuse_unused(context, dict.fromkeys(("model", "set_", "program", "seed", "meta", "no_cache"), why))
    if Path(target).suffix == ".py":
        refuse_unused(context, {"steps": "give a script its arguments after `--`"})
    check_file(out, FileMark.JOB)
    links = named_cluster(cluster)
    script, processes = _program(target, model, program, settings(set_), seed, meta, links)
    count, each = _fit(processes, nodes, gpus_per_node, links)
    words = [] if processes is None else [*(["--steps", str(steps)] if steps else []), "--device", device]
    if requeue and processes is not None:
        words += _going_on(rest or [])
    job = Job(
        name or Path(target).stem,
        (script, *words, *(rest or [])),
        count,
        each,
        device == "cuda",
        max_restarts,
        port,
        time,
        partition,
        account,
        image,
        claim,
        folder,
        requeue,
    )
    _write(forms[chosen[0]](job), out)


def _going_on(words: list[str]) -> list[str]:
    """The arguments with which a program goes on from what it has saved. Raises PlanError if it is not told to save."""
    from ssdsl.run.errors import RequeueSavesNothing

    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = dict(pairwise(split))
    if "--save" not in given:
        raise PlanError(RequeueSavesNothing(None))
    return [] if "--resume" in given else ["--resume", given["--save"]]


def _compiles_nothing(target: Path) -> str | None:
    """The reason why a target needs no compiler; None if it is a plan."""
    if target.suffix == ".py":
        return "a script compiles its plan itself"
    return "the program is compiled already" if (target / "program.json").is_file() else None


def _program(
    target: str,
    model: str | None,
    folder: str | None,
    overrides: dict[str, int],
    seed: int,
    meta: bool,
    cluster: "Links | None",
) -> tuple[str, int | None]:
    """The script to start, and its number of processes; None if only the user knows that. Raises PlanError."""
    from ssdsl.run.errors import NotAProgram

    path = Path(target)
    if path.suffix == ".py":
        if not path.is_file():
            raise PlanError(NotAProgram(None, target, "does not exist", "name a script that is there"))
        return target, None
    if (path / "program.json").is_file():
        return str(path / "main.py"), int(json.loads((path / "program.json").read_text())["world_size"])
    if path.is_dir():
        change = "write one there with `ssdsl compile PLAN --out DIR`"
        raise PlanError(NotAProgram(None, target, "is a folder without a program", change))
    if model is None:
        raise typer.BadParameter("a plan needs its model", param_hint="'--model'")
    written = Path(folder or f"{path.stem}-program")
    loaded = load(target, model, seed, meta=meta)
    loaded.check_has_model()
    result = compiled(loaded, overrides, cluster=cluster)
    evaluates = evaluation(loaded, result, (), cluster)
    with working("writing"):
        write(loaded, result, written, evaluates)
    return str(written / "main.py"), result.plan.devices


def _fit(processes: int | None, nodes: int | None, per_node: int | None, cluster: "Links | None") -> tuple[int, int]:
    """The number of nodes, and of processes on each; for a script, those that the user or the cluster gives."""
    from ssdsl.run.jobs.job import DEFAULT_PER_NODE, fit

    if processes is not None:
        return fit(processes, nodes, per_node, cluster)
    each = per_node or (cluster.groups[0].per_node if cluster is not None else DEFAULT_PER_NODE)
    return fit((nodes or 1) * each, nodes or 1, each, cluster)


def _write(text: str, out: str | None) -> None:
    if out is None:
        print(text, end="")
        return
    from ssdsl.run.failures import writing

    with writing(Path(out)):
        Path(out).write_text(text)
    talk.print(f"{out}: {text.count(chr(10))} lines", markup=False)
