"""Runs the ```console blocks of a page as one session in one folder, and compares what they print with the page.

    <!-- not run: why -->      above a block leaves it out; it may show anything
    <!-- slow: why -->         above a block leaves it out of `make test`; no quick block may need what it does
    $ ssdsl verify             starts processes, and is left out there, too, unless it shows an error
    <!-- name: mine.ssp -->    above a block of another language: the session has it as this file, from there on
    # mymodel.py               as the first line of such a block: the same

In a block, a line `$ ...` is a command, with the lines that a backslash or a here document adds to it. Below it stands
what a terminal shows: stdout and stderr. `...` on a line of its own stands for any lines, within a line for any text.
Lines `ssp> ...` below `ssdsl repl` are typed into it. Times that were measured, paths of the machine and late digits
are not compared.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from ssdsl.cli.main import main

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^((?:<!-- [^\n]* -->\n)*)```(\w+)\n(.*?)^```$", re.M | re.S)
NOTE = re.compile(r"<!-- ([a-z ]+): (.*) -->")
FILE = re.compile(r"# ([\w/]+\.\w+)\n")  # the first line of a file
COMMAND = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*<<'?(\w+)'?\n.*?^\2\n|(?:[^\n]*\\\n)*[^\n]*\n)", re.M | re.S)
PROMPT = "ssp> "
OF_A_SHELL = ("cat", "ls", "python", "torchrun")
MEASURED = ("run", "profile", "torchrun")  # times and memory that these print are the machine's, and losses drift
SECONDS = 300

MASKS = (
    (re.compile(r"\bin \d+(\.\d+)? (s|ms)\b"), "in # s"),
    (re.compile(r"\d(\.\d+)?e-\d+.*"), "#"),  # a rounding error, its share of what is allowed, and where it is
    (re.compile(r"(\d\.\d\d)\d+\b"), r"\1#"),
    (re.compile(r"^─[─ ]*$", re.M), "─"),
    (re.compile(r"(?<=\S) +"), " "),
    (re.compile(r" +$", re.M), ""),
)
ANY_LINES = r"(?:.*\n)*?"
OF_MEASURED = (
    (re.compile(r"\b\d[\d.,]* (s|ms|us|kB|MB|GB)\b"), "#"),
    (re.compile(r"(\d\.\d)\d+\b"), r"\1#"),
)


@dataclass(frozen=True)
class File:
    """A block that is a file of the session."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command as it is typed, and where the page shows what it prints."""

    text: str
    shown: str
    start: int
    end: int

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text.replace("\\\n", " "))

    @property
    def is_measured(self) -> bool:
        return any(word in MEASURED for word in self.words[:2])

    @property
    def starts_processes(self) -> bool:
        return self.words[:2] == ["ssdsl", "verify"] and "error" not in self.shown

    @property
    def typed(self) -> str:
        """What goes into it, line by line."""
        return "".join(line.removeprefix(PROMPT) for line in self.lines if line.startswith(PROMPT))

    @property
    def lines(self) -> list[str]:
        return self.shown.splitlines(keepends=True)


def session_of(page: str, slow: bool = True) -> list[File | Command]:
    """What a page's session does, in the page's order; without its slow blocks and commands, if not `slow`."""
    found: list[File | Command] = []
    for fence in FENCE.finditer(page):
        notes, text = dict(NOTE.findall(fence[1])), fence[3]
        name = notes.get("name") or notes.get("file") or ((first := FILE.match(text)) and first[1]) or ""
        if fence[2] == "console" and "not run" not in notes and (slow or "slow" not in notes):
            found += (c for c in _commands(text, fence.start(3)) if slow or not c.starts_processes)
        elif "." in name:
            found.append(File(name, text))
    return found


def _commands(block: str, offset: int) -> list[Command]:
    starts = [*COMMAND.finditer(block)]
    assert starts and not starts[0].start(), f"a console block begins with `$ `, not with {block[:40]!r}"
    ends = [*(after.start() for _, after in pairwise(starts)), len(block)]
    return [
        Command(at[1].rstrip("\n"), block[at.end() : end], offset + at.end(), offset + end)
        for at, end in zip(starts, ends, strict=True)
    ]


def run_session(page: str, folder: Path, update: bool = False, slow: bool = True) -> str:
    """Run a page's session in a folder, which is the current one; without its slow blocks, if not `slow`.

    Raises AssertionError at the first command that prints something else, or fails though the page shows no error; with
    `update`, returns the page with what is printed now.
    """
    new, done = "", 0
    for step in session_of(page, slow):
        if isinstance(step, File):
            (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / step.name).write_text(step.text, "utf-8")
            continue
        status, found = run(step, folder)
        shown = step.shown
        if not is_shown(step, found):
            assert update, f"$ {step.text}\nprints\n{found}\nand the page shows\n{shown}"
            shown = with_elisions(step, found)
            new, done = new + page[done : step.start] + shown, step.end
        assert not status or "error" in shown, f"$ {step.text}\nends with status {status}\n{found}"
    return new + page[done:]


def run(command: Command, folder: Path) -> tuple[int, str]:
    """The exit status of a command, and what it prints, with paths as they are from the folder."""
    program, *words = command.words
    assert program in ("ssdsl", *OF_A_SHELL), f"`{program}` is none of the programs of a page"
    status, text = _ssdsl(words, command.typed) if program == "ssdsl" else _shell(command.text)
    return status, text.replace(f"{folder}/", "").replace(f"{ROOT}/", "")


def _ssdsl(words: list[str], typed: str) -> tuple[int, str]:
    """In this process, where torch is loaded already."""
    out = io.StringIO()
    with (
        patch.object(sys, "argv", ["ssdsl", *words]),
        patch.object(sys, "path", sys.path.copy()),  # as each command has it, whatever others have added
        patch.object(sys, "stdin", io.StringIO(typed)),
        redirect_stdout(out),
        redirect_stderr(out),
    ):
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue()
    raise AssertionError("main does not return")


def _shell(text: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout


def is_shown(command: Command, found: str) -> bool:
    """Does the page show what was found, but for what differs from run to run?"""
    shown = "".join(line for line in command.lines if not line.startswith(PROMPT))
    shown, found = (_masked(text, command.is_measured) for text in (shown, found))
    pattern = "".join(
        ANY_LINES if line == "...\n" else ".*".join(map(re.escape, line.split("...")))
        for line in shown.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, found) is not None


def _masked(text: str, is_measured: bool) -> str:
    for mask, instead in (*OF_MEASURED, *MASKS) if is_measured else MASKS:
        text = mask.sub(instead, text)
    return f"{text.strip()}\n" if text.strip() else ""


def with_elisions(command: Command, found: str) -> str:
    """What was found, with the lines left out that the page leaves out: before, between and behind lines that it has
    still."""
    assert not command.typed, f"$ {command.text}\nprints\n{found}\nwrite that between what is typed"
    shown = re.split(r"^\.\.\.\n", command.shown, flags=re.M)
    lines = [f"{line}\n" for line in found.strip("\n").split("\n")]
    if len(shown) == 1:
        return "".join(lines)
    first, *between, last = shown
    at = first.count("\n")
    parts = [lines[:at]]
    for part in between:
        start = _find(part, lines, at)
        at = start + part.count("\n")
        parts.append(lines[start:at])
    parts.append(lines[len(lines) - last.count("\n") :])
    return "...\n".join(map("".join, parts))


def _find(part: str, lines: list[str], at: int) -> int:
    first = _masked(part.partition("\n")[0], True)
    places = [n for n in range(at, len(lines)) if _masked(lines[n], True) == first]
    assert places, f"no line is {part!r} any more: write by hand what stands between `...`"
    return places[0]
