"""A page for each diagnostic, from what `ssdsl explain` prints and the example that the tests have of it."""

import inspect
import re
from pathlib import Path

from ssdsl.cli.commands.explain import all_diagnostics
from ssdsl.text.diagnostic import REGISTRY, Diagnostic

STAGES = {
    "E01": ("Files and syntax", "before anything else: a plan's file, its lines and words"),
    "E02": ("The plan", "when statements are read for a model: names, splits, places, orders"),
    "E03": ("The model", "when a model is loaded and captured, or a plan meets its operators"),
    "E04": ("The program", "when the plan becomes a program, or its results are asked for"),
    "E05": ("Runs and checkpoints", "when processes run, and read and write files"),
    "E06": ("Clusters and simulation", "when a cluster is described, a step simulated or measured"),
    "E08": ("The session", "in `ssdsl repl`"),
}


def diagnostic_pages(root: Path) -> dict[str, str]:
    """The pages by their places: `errors/E0203.md`, and the index by stage."""
    codes = all_diagnostics()
    pages = {f"errors/{code}.md": _page(code, REGISTRY[code], root / "tests" / "errors") for code in codes}
    return pages | {"errors/index.md": _index(codes)}


def _page(code: str, found: type[Diagnostic], examples: Path) -> str:
    said, plan = (examples / f"{code}.err", examples / f"{code}.ssp")
    parts = ["---", "orphan: true", "---", "", f"# {code}: {_escaped(found.headline())}", "", f"*{found.severity}*", "", _markdown(found), ""]
    if plan.is_file():
        parts += ["## A plan that shows it", "", "`````ssp", plan.read_text("utf-8").rstrip(), "`````", ""]
    if said.is_file():
        parts += ["## What ssdsl says", "", "`````text", said.read_text("utf-8").rstrip(), "`````", ""]
    return "\n".join(parts)


def _index(codes: list[str]) -> str:
    parts = [
        "# Errors and warnings",
        "",
        "`ssdsl explain CODE` prints what these pages say. A code says where a mistake was found:",
        "",
    ]
    for prefix, (title, when) in STAGES.items():
        mine = [code for code in codes if code.startswith(prefix)]
        parts += [f"## {title}", "", f"{when[0].upper()}{when[1:]}.", ""]
        parts += [f"- [{code}]({code}.md) {_summary(REGISTRY[code])}" for code in mine]
        parts.append("")
    left = [code for code in codes if code[:3] not in STAGES]
    assert not left, f"no stage is known of {', '.join(left)}"
    return "\n".join(parts)


def _summary(found: type[Diagnostic]) -> str:
    """The first sentence of the explanation."""
    first = re.split(r"(?<=[.:])\s", " ".join(_markdown(found).partition("\n\n")[0].split()), maxsplit=1)[0]
    return first.rstrip(":") if not first.endswith(".") else first


def _markdown(found: type[Diagnostic]) -> str:
    """The docstring, in which code already stands in backticks."""
    parts = re.split(r"(`[^`]*`)", inspect.getdoc(found) or "")
    return "".join(part if k % 2 else _escaped(part) for k, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([<>*_\[\]])", r"\\\1", text)
