"""`ssdsl explain E0203`: explains a diagnostic."""

import importlib
import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import ssdsl
from ssdsl.cli.terminal import results
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import REGISTRY

Code = Annotated[str, typer.Argument(metavar="CODE", help="As in error[E0203].", show_default="all of them")]


def explain(code: Code = "") -> None:
    """Explain a diagnostic by its code, or list them all."""
    known = all_diagnostics()
    if not code:
        for name in known:
            summary = (inspect.getdoc(REGISTRY[name]) or "").partition("\n")[0]
            results.print(f"[bold]{name}[/bold] {escape(summary)}")
        return
    name = code.upper().removeprefix("ERROR[").removesuffix("]")
    if name not in known:
        meant = suggest(name, known)
        raise typer.BadParameter(f"there is no diagnostic `{code}`{meant and f'; {meant}'}", param_hint="CODE")
    found = REGISTRY[name]
    results.print(f"{name}: {found.headline()}", style="bold", markup=False)
    results.print(f"\n{inspect.getdoc(found)}", markup=False)


def all_diagnostics() -> list[str]:
    """The codes of all diagnostics. Imports the modules that have `errors` in their path, and the statements of plans.

    These do not load torch. The runtime is left out: it has no diagnostics.
    """
    package = Path(ssdsl.__path__[0])
    found = (path for path in sorted(package.rglob("*errors*")) if package / "runtime" not in path.parents)
    for path in (*found, package / "plan" / "statements"):
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            if file.suffix == ".py":
                importlib.import_module(".".join(["ssdsl", *file.relative_to(package).with_suffix("").parts]))
    return sorted(REGISTRY)
