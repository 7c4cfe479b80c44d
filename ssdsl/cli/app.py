"""The commands. Typer makes one of each typed function, with shell completion and suggestions for misspelt names."""

from typing import Annotated

import typer

import ssdsl
from ssdsl.cli.catalogue import models, plans
from ssdsl.cli.check import check
from ssdsl.cli.checkpoint import checkpoint
from ssdsl.cli.clusters import clusters
from ssdsl.cli.compile import compile_
from ssdsl.cli.diff import diff
from ssdsl.cli.explain import explain
from ssdsl.cli.fmt import fmt
from ssdsl.cli.help import PlanCommand
from ssdsl.cli.launch import launch
from ssdsl.cli.profile import profile
from ssdsl.cli.prove import prove
from ssdsl.cli.repl import repl
from ssdsl.cli.run import run
from ssdsl.cli.search import search
from ssdsl.cli.show import show
from ssdsl.cli.simulate import simulate
from ssdsl.cli.sweep import sweep
from ssdsl.cli.verify import verify

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


app.command("run", cls=PlanCommand)(run)
app.command("verify", cls=PlanCommand)(verify)
app.command("check", cls=PlanCommand)(check)
app.command("prove", cls=PlanCommand)(prove)
app.command("show", cls=PlanCommand)(show)
app.command("compile", cls=PlanCommand)(compile_)
app.command("launch", cls=PlanCommand)(launch)
app.command("repl", cls=PlanCommand)(repl)
app.command("simulate", cls=PlanCommand)(simulate)
app.command("profile")(profile)
app.command("diff")(diff)
app.command("sweep", cls=PlanCommand)(sweep)
app.command("search", cls=PlanCommand)(search)
app.command("models")(models)
app.command("plans")(plans)
app.add_typer(clusters, name="clusters")
app.add_typer(checkpoint, name="checkpoint")
app.command("explain")(explain)
app.command("fmt")(fmt)
