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
    "E07": ("Imports", "when what another tool is told is read, or written for it"),
    "E08": ("The session", "in `ssdsl repl`"),
}


def diagnostic_pages(root: Path) -> dict[str, str]:
    """The pages by their places: `errors/E0203.md`, and the index by stage."""
    codes = all_diagnostics()
    pages = {f"errors/{code}.md": _page(code, REGISTRY[code], root / "tests" / "errors") for code in codes}
    return pages | {"errors/index.md": _index(codes)}


def _page(code: str, found: type[Diagnostic], examples: Path) -> str:
    said, plan = examples / f"{code}.err", examples / f"{code}.ssp"
    what = "An error" if found.severity == "error" else f"A {found.severity}"
    parts = ["---", "orphan: true", "---", "", f"# {code}: {_escaped(found.headline())}", ""]
    parts += [f"{what}, one of [all](index.md#{_anchor(STAGES[code[:3]][0])}).", "", _markdown(found), ""]
    if plan.is_file():
        text = plan.read_text("utf-8").rstrip()
        given = text.split("\n")[0].removeprefix("# set ").split() if text.startswith("# set ") else []
        options = " ".join(f"--set {pair}" for pair in given)
        parts += [f"## A plan{f' with `{options}`' if options else ''}", "", "`````ssp", text, "`````", ""]
    if said.is_file():
        parts += ["## What ssdsl says", "", "`````text", said.read_text("utf-8").rstrip(), "`````", ""]
    return "\n".join(parts)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


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
    """The first sentence of the explanation, without an example that ends it."""
    words = " ".join(_markdown(found).partition("\n\n")[0].split())
    first = re.match(r"((?:`[^`]*`|[^`])*?[.;])(?= |$)", words)
    return re.sub(r": `[^`]*`\.$", "", first[1] if first else words).rstrip(".;") + "."


def _markdown(found: type[Diagnostic]) -> str:
    """The docstring, in which code already stands in backticks."""
    parts = re.split(r"(`[^`]*`)", inspect.getdoc(found) or "")
    return "".join(part if k % 2 else _escaped(part) for k, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([<>*_\[\]])", r"\\\1", text)
