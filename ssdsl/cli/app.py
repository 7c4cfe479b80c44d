"""The commands. Typer makes a command of each typed function, with shell completion and suggestions for misspelt
names."""

from collections.abc import Callable
from typing import Annotated

import typer

import ssdsl
from ssdsl.cli.commands.cache import cache
from ssdsl.cli.commands.capture import capture
from ssdsl.cli.commands.catalogue import models, ops, plans
from ssdsl.cli.commands.check import check
from ssdsl.cli.commands.checkpoint import checkpoint
from ssdsl.cli.commands.clusters import clusters
from ssdsl.cli.commands.compile import compile_
from ssdsl.cli.commands.diff import diff
from ssdsl.cli.commands.discover import discover
from ssdsl.cli.commands.explain import explain
from ssdsl.cli.commands.export import export
from ssdsl.cli.commands.fmt import fmt
from ssdsl.cli.commands.import_ import import_
from ssdsl.cli.commands.lsp import lsp
from ssdsl.cli.commands.matrix import matrix
from ssdsl.cli.commands.new import new
from ssdsl.cli.commands.profile import profile
from ssdsl.cli.commands.prove import prove
from ssdsl.cli.commands.repl import repl
from ssdsl.cli.commands.reshard import reshard
from ssdsl.cli.commands.run import run
from ssdsl.cli.commands.search import search
from ssdsl.cli.commands.show import show
from ssdsl.cli.commands.simulate import simulate
from ssdsl.cli.commands.sweep import sweep
from ssdsl.cli.commands.verify import verify
from ssdsl.cli.help import CheckedCommand, PlanCommand
from ssdsl.cli.options import takes_model

app = typer.Typer(
    name="ssdsl",
    help="A language for parallel training plans: split, assign, order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ssdsl {ssdsl.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


Commands = tuple[Callable[..., None], ...]
WITH_MODEL: Commands = (run, verify, check, prove, show, compile_, repl, simulate)
WITH_MODEL += (profile, export, diff, reshard, sweep, search, matrix, new, capture, discover, plans)
WITHOUT_MODEL: Commands = (import_, cache, models, ops, explain, fmt, lsp)
for command in WITH_MODEL:
    kind = (
        PlanCommand
        if command not in (profile, diff, reshard, matrix, new, capture, discover, plans)
        else CheckedCommand
    )  # these take several plans, or none
    app.command(command.__name__.strip("_"), cls=kind)(takes_model(command))
for command in WITHOUT_MODEL:
    app.command(command.__name__.strip("_"), cls=CheckedCommand)(command)
for name, group in (("clusters", clusters), ("checkpoint", checkpoint)):
    for subcommand in group.registered_commands:
        subcommand.cls = CheckedCommand
    app.add_typer(group, name=name)
