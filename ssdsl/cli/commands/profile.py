"""`ssdsl profile`: records the times of operators, communication and the engine, for simulations of other plans."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import LoadedPlan, captured, compiled, parsed, worded
from ssdsl.cli.terminal import print_views, talk
from ssdsl.cli.training import check_kernels, check_optimizer, compared, train, workplace
from ssdsl.kernel_choice import EAGER
from ssdsl.lang.save import FileMark, check_file

if TYPE_CHECKING:
    from ssdsl.run.results import RunResult
    from ssdsl.simulate.profile.profile import Profile
    from ssdsl.workspace import Compiled

LEAST_STEPS = 4  # the fourth step is the first in which operators are timed one by one

Plans = Annotated[
    list[str],
    typer.Argument(metavar="PLAN[,NAME=N]...", help="Plans, each with its own settings, as pipeline,S=2,M=4."),
]
Out = Annotated[
    str, typer.Option("--out", "-o", metavar="FILE", help="The profile; what is missing is added to one that exists.")
]
Steps = Annotated[int, typer.Option(min=LEAST_STEPS, help="Training steps of each run.")]


def profile(
    plans: Plans,
    model: options.Model,
    out: Out,
    set_: options.Set,
    steps: Steps = 12,
    seed: options.Seed = 0,
    device: options.OnDevice = "cpu",
    backend: options.WithBackend = None,
    precision: options.WithPrecision = None,
    kernels: options.Kernels = EAGER,
    optimizer: options.AnyOptimizer = "adamw",
    processes: options.Processes = None,
    timeout: options.Timeout = 600.0,
) -> None:
    """Record what the operators of some plans take on this machine, so that any plan of the same operators can be
    simulated: `ssdsl simulate PLAN --model M --costs FILE`.

    A plan is run for some steps, unless the profile has all that it needs.
    """
    from ssdsl.ir.program import Kernels
    from ssdsl.run.profile.timed_calls import timed_calls
    from ssdsl.runtime.options import Training
    from ssdsl.show.tables.timed_calls import timed_calls_view
    from ssdsl.simulate.profile.profile import merged
    from ssdsl.simulate.profile.read_costs import lacking, read_costs, write_profile

    check_file(out, FileMark.COSTS)
    overrides = settings(set_)
    chosen = [_chosen(words) for words in plans]
    sources = [parsed(plan) for plan, _ in chosen]
    check_optimizer(optimizer)
    check_kernels(kernels, device)
    held = captured(model, seed, precision=precision, trains=True)
    known = read_costs(Path(out)).profile if Path(out).exists() else None
    profiles = [known] if known is not None else []
    for (path, source), (_, own) in zip(sources, chosen, strict=True):
        loaded = LoadedPlan(path, source, held)
        program = compiled(loaded, overrides | own, kernels=kernels)
        if known is not None and not lacking(program.program, known):
            talk.print(f"{worded(program)}: the profile has all that it needs", highlight=False, markup=False)
            continue
        training = Training(
            steps,
            seed,
            device,
            optimizer,
            record=True,
            timeout_s=timeout,
            backend=backend,
            kernel_mode=kernels.mode,
        )
        with workplace(None) as folder:
            result = train(compared(loaded), program, training, folder, processes, False)
        profiles.append(_recorded(known, program, result, Path(out)))
        known = merged(profiles)
        write_profile(out, known)
        talk.print(f"{worded(program)}: recorded", highlight=False, markup=False)
        if program.program.kernels is Kernels.COMPILED:
            print_views(timed_calls_view(worded(program), timed_calls(program.program, result)))
    talk.print(f"{out}: for `ssdsl simulate --costs {out}`", highlight=False, markup=False)


def _chosen(words: str) -> tuple[str, dict[str, int]]:
    """A plan and its own settings: `pipeline,S=2,M=4`."""
    plan, *own = words.split(",")
    return plan, settings(own)


def _recorded(known: "Profile | None", program: "Compiled", result: "RunResult", path: Path) -> "Profile":
    """The profile of a run. Raises PlanError if the known one is of another machine."""
    from ssdsl.run.profile.recorded_profile import recorded_profile
    from ssdsl.simulate.profile.read_costs import check_machine

    found = recorded_profile(program.program, result, worded(program))
    if known is not None:
        check_machine(str(path), known.machine, found.machine)
    return found
