"""All mistakes of a plan together, those of names beside those of syntax, and the changes that their helps name."""

import difflib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from ssdsl.cli.pipeline import LoadedPlan, captured
from ssdsl.cli.terminal import blank_line, show_diagnostics, talk
from ssdsl.lang.read import read_source
from ssdsl.lang.recover import recovered
from ssdsl.lang.save import save_text
from ssdsl.lang.shipped import plan_path
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.edits import edited

if TYPE_CHECKING:
    from ssdsl.text.diagnostic import Diagnostic

STYLES = {"+": "green", "-": "red", "@": "cyan"}


def load_whole(plan: str, model: str, overrides: Mapping[str, int], meta: bool, precision: str | None) -> LoadedPlan:
    """As `load`, but a plan with mistakes of syntax is read for the model, too. Raises PlanError with all mistakes.
    Those of syntax are shown before the model is captured, and are then not among those of the error."""
    path = plan_path(plan)
    source = read_source(path)
    found = recovered(source)
    show_diagnostics(found.mistakes)
    try:
        known = captured(model, meta=meta, precision=precision)
    except PlanError:
        if found.mistakes:
            blank_line()
        raise
    if found.mistakes:
        from ssdsl.plan.interpret import read_recovered
        from ssdsl.plan.model_index import index_model

        every = read_recovered(found, index_model(known.graph), overrides, path.parent)[1]
        if len(every) > len(found.mistakes):
            blank_line()
        raise AllMistakes(every, found.mistakes)
    return LoadedPlan(path, source, known)


class AllMistakes(PlanError):
    """All mistakes of a plan, of which those of syntax have been shown already."""

    def __init__(self, every: "tuple[Diagnostic, ...]", shown: "tuple[Diagnostic, ...]") -> None:
        super().__init__(*(one for one in every if one not in shown))
        self.every = every


def fix(plan: str, error: PlanError, yes: bool) -> bool:
    """Shows the changes of the plan that the helps of its errors name, and makes them if the user wants, or has said
    `yes`. Of several that a help names it is the first, and with `yes` none: nobody chooses. Returns whether any was
    made. Raises PlanError if the file cannot be written."""
    path = plan_path(plan)
    source = read_source(path)
    every = error.every if isinstance(error, AllMistakes) else error.diagnostics
    named = [edits for one in every if one.severity == "error" and (edits := one.edits())]
    text = edited(source, [first for first, *others in named if not (yes and others)])
    if text == source.text:
        return False
    show_diagnostics(error.diagnostics)
    if path != Path(plan):
        raise typer.BadParameter(f"{plan} comes with ssdsl; copy {path}, and check that", param_hint="--fix")
    lines = difflib.unified_diff(source.text.split("\n"), text.split("\n"), plan, plan, n=1, lineterm="")
    for line in lines:
        talk.print(Text(line, style=STYLES.get(line[:1], "")), soft_wrap=True)
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        again = shlex.join(["ssdsl", *sys.argv[1:], "--yes"])
        raise typer.BadParameter(f"no terminal to ask on; `{again}` makes these changes", param_hint="--fix")
    if not yes and not typer.confirm(f"change {plan}?", err=True):
        raise typer.Exit(1)
    save_text(plan, text)
    return True
