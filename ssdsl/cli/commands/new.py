"""`ssdsl new`: writes a first plan for a model, which is proved."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.pipeline import captured, working
from ssdsl.cli.terminal import results
from ssdsl.lang.errors.files import EXISTS, FileUnwritable
from ssdsl.lang.save import check_folder, put_whole, reason_of
from ssdsl.text.diagnostic import PlanError

Name = Annotated[
    str, typer.Argument(metavar="MODEL", help="As --model takes it.", autocompletion=options.complete_model)
]
Devices = Annotated[int, typer.Option(min=1, metavar="N", help="The number of devices.")]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", metavar="FILE.ssp", help="The file to write.", show_default="the model's name, here"),
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]
END = ".ssp"


def new(model: Name, devices: Devices = 4, out: Out = None, force: Force = False) -> None:
    """Write a first plan for a model: its dimensions as comments, statements that prove, what to try next.

    The plan names its model, so that other commands take it without --model.
    """
    from ssdsl.lang.consent import consent, model_file
    from ssdsl.lang.header import GRAPH

    file = out if out is not None else f"{_stem(model)}{END}"
    if not file.endswith(END):
        raise typer.BadParameter(f"plans end in {END}: {file}{END}", param_hint="'--out'")
    check_folder(file)
    if Path(file).exists() and not force:
        raise PlanError(FileUnwritable(None, file, EXISTS))
    held = captured(model)
    from ssdsl.first_plan.write import first_plan
    from ssdsl.matrix.trials import Trials
    from ssdsl.workspace import Workspace

    folder = Path(file).resolve().parent
    named = model_file(model, Path())
    beside = model
    if named is not None or model.endswith(GRAPH):
        path, colon, function = model.partition(":")
        beside = f"{os.path.relpath(Path(path).resolve(), folder)}{colon}{function}"
    with working(f"trying plans on {model}"):
        plan = first_plan(Trials(model, Workspace(held.graph)), devices, model, beside, file, not held.origin)
    try:
        put_whole(Path(file), plan.text, overwrite=force)
    except FileExistsError as error:
        raise PlanError(FileUnwritable(None, file, EXISTS)) from error
    except (OSError, ValueError) as error:
        raise PlanError(FileUnwritable(None, file, reason_of(error))) from error
    if named is not None:  # whoever names a file here wants to run it
        consent(named[0])
    about = "; ".join(plan.chosen.draft.about)
    results.print(f"{file}: {plan.chosen.draft.devices} devices: {about}", markup=False)
    if plan.cell.work is not None:
        results.print(f"the busiest device computes {plan.cell.work:.1%} of what one device would", markup=False)
    results.print("it is proved for this model, also with each line that it says to try next", style="green")
    results.print(f"next: ssdsl check {file}", markup=False)


def _stem(model: str) -> str:
    """The name of the file of a model's plan.

    >>> [_stem(m) for m in ("nets/my.py:net", "hf:qwen3_moe,seq=8", "gpt:350m", "hf:a/config.json", "a/b.graph")]
    ['net', 'qwen3_moe', 'gpt', 'config', 'b']
    """
    name = model.partition(",")[0]
    head, _, tail = name.partition(":")
    own = tail if head == "hf" or head.endswith(".py") else head
    return re.sub(r"[^\w-]+", "_", Path(own).stem) or "plan"
