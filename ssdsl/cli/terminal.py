"""Prints results on stdout and messages on stderr; in colours on a terminal, unless NO_COLOR is set."""

import json
import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

import ssdsl
from ssdsl.show.view import View, table
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.render import as_json, render

PIPED_WIDTH = 120
TRAILING = re.compile(r"[ \t]+(?=\n)")


for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:  # the caller has closed it
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  it stays open


class _Stripped:
    """The current stdout, without the blanks with which a table ends its lines, and with `?` for characters that it
    cannot encode."""

    def write(self, text: str) -> int:
        text = TRAILING.sub("", text)
        encoding = sys.stdout.encoding or "utf-8"
        return sys.stdout.write(text.encode(encoding, "replace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def _console(stderr: bool) -> Console:
    terminal = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    plain = bool(os.environ.get("NO_COLOR"))
    file: Any = None if stderr else _Stripped()
    return Console(
        file=file,
        stderr=stderr,
        highlight=False,
        width=None if terminal else PIPED_WIDTH,
        color_system=None if plain else "auto",
    )


results = _console(stderr=False)
talk = _console(stderr=True)

STYLES = (
    (re.compile(r"^(error\[\w+\])(: .*)$"), ("bold red", "bold")),
    (re.compile(r"^(warning\[\w+\])(: .*)$"), ("bold yellow", "bold")),
    (re.compile(r"^(\s*-->)( .*)$"), ("blue", "")),
    (re.compile(r"^(\s*\| *)(\^+.*)$"), ("blue", "bold red")),
    (re.compile(r"^(\s*\d* \|)(.*)$"), ("blue", "")),
    (re.compile(r"^(\s*= note:)(.*)$"), ("bold cyan", "")),
    (re.compile(r"^(help:)(.*)$"), ("bold green", "")),
)


@dataclass
class _Form:
    """The form of diagnostics: text for people, or one JSON object a line."""

    json: bool = False


_form = _Form()


def diagnostics_as_json(wanted: bool) -> bool:
    """Switches diagnostics to JSON, or back to text; returns `wanted`."""
    _form.json = wanted
    return wanted


def show_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Prints diagnostics on stderr, with an empty line between two; with `--json` each is an object on its own line."""
    if _form.json:
        for diagnostic in diagnostics:
            sys.stderr.write(json.dumps(as_json(diagnostic), ensure_ascii=False) + "\n")
        return
    for number, diagnostic in enumerate(diagnostics):
        text = Text("\n" if number else "").append(Text("\n").join(map(_styled, render(diagnostic).split("\n"))))
        talk.print(text, soft_wrap=True)


def blank_line() -> None:
    """Prints an empty line on stderr, between two groups of diagnostics for people."""
    if not _form.json:
        talk.print()


def _styled(line: str) -> Text:
    for pattern, styles in STYLES:
        if found := pattern.match(line):
            return Text.assemble(*zip(found.groups(), styles, strict=True))
    return Text(line)


def print_text(text: str) -> None:
    """Prints text on stdout as it is, whatever its width."""
    results.file.write(text)


def print_views(*views: View) -> None:
    """Prints views as tables on stdout."""
    for view in views:
        results.print(table(view, results.width))


def print_json(value: Any) -> None:
    """Prints JSON on stdout, indented for people, never coloured."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


# -- bugs --------------------------------------------------------------------------------------------------------------


def report_bug(error: Exception) -> None:
    """Reports a bug of ssdsl in one short message: where the file with the traceback is, and what to do with it."""
    path = _save(error)
    talk.print(f"internal error in ssdsl: {type(error).__name__}: {error}", style="bold red", markup=False)
    talk.print(f"the traceback is in {path}; report it with the plan and the model", markup=False)


def _save(error: Exception) -> str:
    handle, path = tempfile.mkstemp(prefix="ssdsl-bug-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        print(f"ssdsl {ssdsl.__version__}, Python {platform.python_version()}, {platform.platform()}", file=file)
        print(f"command: {sys.argv[1:]}", file=file)
        traceback.print_exception(error, file=file)
    return path
