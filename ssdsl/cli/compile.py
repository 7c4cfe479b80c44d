"""`ssdsl compile`: write the program that torchrun can start where ssdsl is not installed."""

from pathlib import Path
from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import compiled, load, working
from ssdsl.cli.terminal import results
from ssdsl.cli.training import write

Folder = Annotated[
    str, typer.Option("--out", "-o", metavar="DIR", help="Output folder; an earlier program there is replaced.")
]


def compile_(plan: options.Plan, model: options.Model, out: Folder, set_: options.Set, seed: options.Seed = 0) -> None:
    """Write a plan's program into a folder: readable Python that runs with torchrun and torch alone."""
    loaded = load(plan, model, seed)
    program = compiled(loaded, settings(set_))
    with working("writing"):
        write(loaded, program, Path(out))
    from ssdsl.runtime.start import command

    devices = program.plan.devices
    results.print(command(devices, str(Path(out) / "main.py")), markup=False, soft_wrap=True)
