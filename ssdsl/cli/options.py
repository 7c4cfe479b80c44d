"""Arguments and options that several commands share, their completion, and the refusal of those without effect."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ssdsl.cli.terminal import diagnostics_as_json
from ssdsl.kernel_choice import KernelChoice, WrongKernels, kernel_choice, runnable
from ssdsl.lang.shipped import shipped_plans

if TYPE_CHECKING:
    import ssdsl.cluster.cluster


def complete_plan(incomplete: str) -> list[str]:
    """The shipped plans, and plans in the folder that is being typed."""
    words = [*(name for name, _ in shipped_plans()), *_files(incomplete, "*.ssp")]
    return [word for word in words if word.startswith(incomplete)]


def _files(incomplete: str, pattern: str) -> list[str]:
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        return [str(path) for path in sorted(folder.glob(pattern))]
    except OSError:
        return []


def complete_model(incomplete: str) -> list[str]:
    """The models of the zoo in all sizes, and the prefix of models of transformers."""
    from ssdsl.model.zoo import ZOO

    names = [word for name, family in ZOO.items() for word in (name, *(f"{name}:{size}" for size in family.sizes))]
    return [name for name in [*names, "hf:"] if name.startswith(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    """The known clusters, and TOML files in the folder that is being typed."""
    from ssdsl.cluster.load import known_clusters

    return [word for word in [*known_clusters(), *_files(incomplete, "*.toml")] if word.startswith(incomplete)]


# a param, or a choice by its line
NUMBERED = re.compile(r"[^\W\d]\w*|either:\d+")


def settings(values: list[str], option: str = "--set") -> dict[str, int]:
    """`--set T=4` as numbers by name; the last value of a name counts. Raises typer.BadParameter."""
    found = {}
    for value in values:
        name, equal, number = (part.strip() for part in value.partition("="))
        if not (equal and NUMBERED.fullmatch(name) and number.removeprefix("-").isdecimal()):
            own = f"; each param has {option} of its own" if number.count("=") else ""
            raise typer.BadParameter(f"`{value}` is not NAME=NUMBER, as in {option} T=4{own}", param_hint=f"'{option}'")
        found[name] = int(number)
    return found


def devices_of(text: str, cluster: "ssdsl.cluster.cluster.Cluster | None") -> range:
    """`--devices 64` or `--devices 1..64` as the range of the numbers of devices that a plan may take. Raises
    typer.BadParameter, also for more than a cluster has."""
    from ssdsl.sketch.sketch import wanted_devices

    first, dots, last = text.partition("..")
    if not first.isdecimal() or (dots and not last.isdecimal()):
        wrong = f"`{text}` is neither a number nor a range, as 64 or 1..64"
        raise typer.BadParameter(wrong, param_hint="'--devices'")
    try:
        return wanted_devices(int(first), int(last or first), cluster)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--devices'") from None


def numbers_option(name: str, short: str, metavar: str, help: str) -> Any:
    """An option that takes numbers of params, and may be repeated."""
    return typer.Option(name, short, metavar=metavar, help=help, default_factory=list, show_default=False)


def cluster_option(help: str, show_default: bool | str = True) -> Any:
    """The option `--cluster`; commands differ in what they do with it."""
    return typer.Option(
        "--cluster", "-c", metavar="NAME", help=help, show_default=show_default, autocompletion=complete_cluster
    )


Plan = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help="A plan's file, or the name of one of `ssdsl plans`.", autocompletion=complete_plan
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME[:SIZE]",
        help="One of `ssdsl models`, as gpt, gpt:small or gpt:350m,layers=8; hf:TYPE or hf:config.json of "
        "transformers, as hf:llama,num_hidden_layers=2; or path/to/file.py:function.",
        autocompletion=complete_model,
    ),
]
Set = Annotated[list[str], numbers_option("--set", "-s", "NAME=N", "Set a param of the plan. Repeatable.")]
Cluster = Annotated[str, cluster_option("One of `ssdsl clusters`, or a TOML file of your own.")]
ForCluster = Annotated[
    str | None,
    cluster_option(
        "Choose the communication that is cheapest there: one of `ssdsl clusters`, or a TOML file.",
        show_default="processes of one machine",
    ),
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs", metavar="FILE", help="Times of tasks from a JSON file, as `ssdsl run --profile FILE` measures them."
    ),
]
Meta = Annotated[
    bool,
    typer.Option("--meta", help="Build the model without the numbers of its weights: each process makes its part."),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31, help="Random seed for weights, batches and dropout.")]


def _simulated_kernels(text: str | KernelChoice) -> KernelChoice:
    try:
        return kernel_choice(text)
    except WrongKernels as error:
        raise typer.BadParameter(str(error), param_hint="'--kernels'") from None


def _run_kernels(text: str | KernelChoice) -> KernelChoice:
    try:
        return runnable(_simulated_kernels(text))
    except WrongKernels as error:
        raise typer.BadParameter(str(error), param_hint="'--kernels'") from None


def check_runnable(kernels: KernelChoice) -> None:
    """Raises typer.BadParameter for kernels that are simulated only."""
    _run_kernels(kernels)


def _kernels_option(run: bool) -> Any:
    words = ["eager", "compiled", *([] if run else ["fused"])]
    return typer.Option(
        "--kernels",
        parser=_run_kernels if run else _simulated_kernels,  # of which typer takes the name
        metavar="|".join(words).replace("compiled", "compiled[:MODE]"),
        help="Each operator as a kernel of its own, or kernels that torch.compile makes, perhaps in a mode of torch's, "
        f"as compiled:max-autotune{'' if run else ', or fused by hand, as in Megatron-LM'}.",
        autocompletion=lambda: words,
    )


Kernels = Annotated[KernelChoice, _kernels_option(run=True)]  # of a program that runs
SimulatedKernels = Annotated[KernelChoice, _kernels_option(run=False)]
WithGenerator = Annotated[
    Literal["hash", "philox"],
    typer.Option("--generator", help="The generator of random numbers: a fast hash, or Philox4x32-10."),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
AllSteps = Annotated[int, typer.Option(min=1, help="Training steps, with those before a resumed run.")]
OnDevice = Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="cpu (gloo) or cuda (NCCL).")]
WithBackend = Annotated[
    Literal["gloo", "nccl"] | None,
    typer.Option(
        "--backend",
        help="Backend of torch.distributed. If given, several processes can share a GPU, slowly.",
        show_default="nccl with cuda, else gloo",
    ),
]
WithPrecision = Annotated[
    Literal["bf16", "fp16"] | None,
    typer.Option(
        "--precision", help="Compute in this type, with master weights in float32.", show_default="the model's"
    ),
]
Masters = Annotated[
    bool,
    typer.Option(
        "--master-weights/--no-master-weights",
        help="Weights in 16 bits have a master copy and moments in float32, as with `ssdsl run --precision`.",
    ),
]
Fp32Grads = Annotated[
    bool, typer.Option("--fp32-grads", help="Gradients of weights in 16 bits are added up and reduced in float32.")
]
AnyOptimizer = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="NAME[,OPTION=VALUE]...",
        help="Optimizer from torch.optim, by its name, as sgd,momentum=0.9 or adamw,betas=(0.9,0.95).",
    ),
]
LearningRate = Annotated[float, typer.Option("--lr", min=0, help="The optimizer's learning rate.")]
Clip = Annotated[float | None, typer.Option(min=1e-12, help="The largest norm of all gradients together.")]
Accumulate = Annotated[int, typer.Option(min=1, metavar="N", help="Add up the gradients of N batches for one step.")]
EvalData = Annotated[
    str | None,
    typer.Option(metavar="FILE:FUNCTION", help="Evaluate on what this function returns, as with --data."),
]
EvalEvery = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Evaluate every N steps.", show_default="at the end")
]
Save = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Save checkpoints here.", show_default="`checkpoints` in --out, if given"),
]
SaveEvery = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Save every N steps as well.", show_default="at the end")
]
Keep = Annotated[int, typer.Option(min=1, metavar="N", help="The number of checkpoints to keep.")]
Resume = Annotated[
    str | None, typer.Option(metavar="DIR", help="Go on where the newest checkpoint here was saved, under any plan.")
]
AllowNan = Annotated[bool, typer.Option("--allow-nan", help="Go on if the loss is not finite.")]
FindNan = Annotated[
    bool, typer.Option("--find-nan", help="Name what made the first NaN; check gradients and updates too.")
]
Blocking = Annotated[
    bool, typer.Option("--blocking", help="Wait for each collective where it starts: nothing computes beside it.")
]
Link = Annotated[
    str | None,
    typer.Option(
        "--link",
        metavar="SPEED",
        help="Join the processes by an emulated network, as bandwidth=1Gb/s,latency=2ms,node=8:10Gb/s: links within "
        "nodes of 8 processes carry 10 Gb/s.",
        show_default="none",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of local processes.", show_default="16, or twice the processors"),
]
LockFile = Annotated[
    str | None,
    typer.Option("--lock-file", metavar="FILE", help="The file of the lock, in place of that beside the plan."),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="End the run when a process has not moved for so long.")
]
NodeCount = Annotated[
    int, typer.Option("--nnodes", min=1, help="The number of machines that run this command together.")
]
NodeRank = Annotated[int, typer.Option("--node-rank", min=0, help="The number of this machine, from 0.")]
Endpoint = Annotated[
    str | None,
    typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Machine 0 and a free port there, where all meet."),
]
PerNode = Annotated[
    int | None,
    typer.Option("--nproc-per-node", min=1, help="Processes on each machine.", show_default="an equal share"),
]
Restarts = Annotated[
    int, typer.Option("--max-restarts", min=0, help="Restart all processes at most so often after one has died.")
]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", metavar="DIR", help="Keep the program, its results and logs in this folder."),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FILE:FUNCTION",
        help="Train on what this function returns: a Dataset, a DataLoader or batches.",
        show_default="the model's batches",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        is_eager=True,
        callback=diagnostics_as_json,
        help="Print JSON instead of tables; mistakes and warnings are a JSON object a line on stderr.",
    ),
]


def refuse_unused(context: typer.Context, unused: Mapping[str, str]) -> None:
    """Raises typer.BadParameter if one of these parameters was given; each comes with the advice what to change.

    Parameters have the names of the command's function.
    """
    for param in context.command.params:
        source = context.get_parameter_source(param.name) if param.name in unused else None
        if source is not None and source.name == "COMMANDLINE":
            hint = f"'{param.opts[0]}'"
            raise typer.BadParameter(f"it changes nothing here: {unused[param.name]}", param_hint=hint)


NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Capture the model anew: neither take a graph that is kept nor keep this one."),
]


@dataclass(slots=True)
class _Switch:
    on: bool = True


keeps_graphs = _Switch()  # whether this command takes a kept graph, and keeps a new one


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """The command, extended by the option `--no-cache`, which all commands with a model share."""

    @functools.wraps(command)
    def extended(*args: Any, no_cache: bool, **options: Any) -> None:
        keeps_graphs.on = not no_cache
        command(*args, **options)

    own = inspect.signature(command)
    kind = inspect.Parameter.KEYWORD_ONLY
    option = inspect.Parameter("no_cache", kind, default=False, annotation=NoCache)
    extended.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    extended.__annotations__ = {**command.__annotations__, "no_cache": NoCache}
    return extended
