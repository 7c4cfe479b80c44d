"""A lock: the communication of a plan as a text file beside it, which `ssdsl check` compares with what follows today.

    [--model gpt:tiny --set T=2]
    # ssdsl 0.1.0, torch 2.13.0
    4 devices
    all_reduce over tp, forward: h.*.attn.c_proj addmm on gpus[pp = 0], 8 calls, 524288 bytes

A section is for a model with its settings, which its first line gives as the words of a command. Comments and empty
lines do not count. Files in these words are named from the lock's own folder, so that it does not matter where a
command runs.
"""

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ssdsl
from ssdsl.ir.program import Program
from ssdsl.lang.read import read_source
from ssdsl.lang.save import save_text
from ssdsl.lang.shipped import shipped_plans
from ssdsl.record import Record
from ssdsl.show.errors import CommunicationChanged, LockUnreadable, NotLocked
from ssdsl.show.tables.communication import communication_view
from ssdsl.show.view import with_root
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source, Span

SUFFIX = ".comm"
ABOUT = (
    "# The communication of {plan}. `ssdsl check` compares with it; `ssdsl show PLAN comm --lock` accepts what is new."
)
SECTION = re.compile(r"\[(?P<words>.*)\]\s*\Z")
MOST_LINES = 40
NOTHING = "nothing is communicated"


class LockSection(Record):
    """The communication of one model with its settings: the words that say which, its lines without comments, and where
    its first line stands."""

    words: str
    lines: tuple[str, ...]
    span: Span


class Locked(Record):
    """A lock's file, and what it has."""

    source: Source
    sections: tuple[LockSection, ...]

    def of(self, words: str) -> LockSection | None:
        """The section of these words."""
        return next((s for s in self.sections if s.words == words), None)


def lock_path(plan: Path) -> Path:
    """The lock of a plan: beside it, with the ending `.comm`; of a plan that comes with ssdsl, in this folder."""
    shipped = {path.resolve() for _, path in shipped_plans()}
    return Path(plan.stem + SUFFIX) if plan.resolve() in shipped else plan.with_suffix(SUFFIX)


def lock_words(
    lock: Path, model: str, params: Mapping[str, int], cluster: str | None = None, precision: str | None = None
) -> str:
    """The words for a model and its settings: `--model gpt:tiny --set T=2`."""
    found = ["--model", _from(lock, model)]
    found += [word for name, value in sorted(params.items()) for word in ("--set", f"{name}={value}")]
    found += [] if cluster is None else ["--cluster", _from(lock, cluster)]
    found += [] if precision is None else ["--precision", precision]
    return shlex.join(found)


def _from(lock: Path, word: str) -> str:
    """The name of a file from the lock's folder, as in `mymodel.py:net`; other words as they are."""
    file, colon, rest = word.partition(":")
    if not Path(file).is_file():
        return word
    return Path(os.path.relpath(Path(file).resolve(), lock.resolve().parent)).as_posix() + colon + rest


def lock_lines(program: Program) -> tuple[str, ...]:
    """The communication of a program as lines."""
    devices = program.plan.devices
    rows = communication_view(program).rows
    return f"{devices} device{'s' if devices > 1 else ''}", *(_line(*map(str, row)) for row in rows or [(NOTHING,)])


def _line(
    kind: str, over: str = "", when: str = "", of: str = "", on: str = "", calls: str = "", size: str = ""
) -> str:
    if not when:
        return kind
    where = over if over.startswith("to ") else f"over {over}" if over else ""
    what = " ".join(filter(None, (kind, where)))
    return f"{what}, {when}: {with_root(of)} on {on}, {calls} call{'s' if calls != '1' else ''}, {size} bytes"


# -- files -------------------------------------------------------------------------------------------------------------


def read_lock(path: Path) -> Locked:
    """The lock in a file. Raises PlanError where it is no lock."""
    if not path.is_file():
        raise PlanError(LockUnreadable(None, str(path), "there is no such file"))
    source = read_source(path)
    return Locked(source, tuple(_sections(source)))


def _sections(source: Source) -> Iterator[LockSection]:
    words, lines, span, known = "", list[str](), None, set[str]()
    at = 0
    for raw in source.text.split("\n"):
        line, here, at = raw.strip(), Span(source, at, at + len(raw.rstrip())), at + len(raw) + 1
        if not line or line.startswith("#"):
            continue
        if match := SECTION.match(line):
            if span is not None:
                yield LockSection(words, tuple(lines), span)
            words, lines, span = match["words"].strip(), [], here
            if words in known:
                raise PlanError(LockUnreadable(here, source.name, "it has two sections of these words"))
            known.add(words)
        elif span is None:
            raise PlanError(LockUnreadable(here, source.name, "a section begins with a line as [--model gpt]"))
        else:
            lines.append(line)
    if span is not None:
        yield LockSection(words, tuple(lines), span)


def write_lock(path: Path, plan: Path, words: str, lines: Sequence[str]) -> str:
    """Writes the section of these words into a lock, beside those that it has for other words. Returns what happened to
    it: "new", "changed" or "as before". Raises PlanError where the file cannot be written, or is no lock."""
    text = section_text(words, lines)
    if not path.exists():
        save_text(str(path), f"{ABOUT.format(plan=plan.name)}\n\n{text}")
        return "new"
    known = read_lock(path)
    before = known.of(words)
    if before is None:
        save_text(str(path), f"{known.source.text.rstrip()}\n\n{text}".lstrip())
        return "new"
    following = [s.span.start for s in known.sections if s.span.start > before.span.start]
    whole = known.source.text
    rest = whole[min(following) :] if following else ""
    save_text(str(path), whole[: before.span.start] + text + ("\n" if rest else "") + rest)
    return "as before" if before.lines == tuple(lines) else "changed"


def section_text(words: str, lines: Sequence[str]) -> str:
    """A section as it is written."""
    return "\n".join([f"[{words}]", f"# ssdsl {ssdsl.__version__}, torch {_torch_version()}", *lines, ""])


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare_lock(path: Path, plan: str, words: str, lines: Sequence[str]) -> Diagnostic | None:
    """What is wrong where a plan's communication is not what its lock says; a warning where it says nothing of the
    model with these settings. Raises PlanError where it is no lock."""
    known = read_lock(path)
    section = known.of(words)
    accept = shlex.join(["ssdsl", "show", plan, "comm"])
    if section is None:
        has = [f"[{s.words}]" for s in known.sections] or ["nothing"]
        return NotLocked(None, str(path), words, "\n".join(has), f"{accept} {words} --lock")
    if section.lines == tuple(lines):
        return None
    return CommunicationChanged(section.span, plan, "\n".join(_diff(section.lines, lines)), f"{accept} {words} --lock")


def _diff(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """The lines that differ: those of the lock with `-`, those of today with `+`."""
    lines = [*difflib.unified_diff(before, after, lineterm="", n=0)][2:]  # without the names of files
    changed = [f"{line[0]} {line[1:]}" for line in lines if not line.startswith("@")]
    yield from changed[:MOST_LINES]
    if len(changed) > MOST_LINES:
        yield f"and {len(changed) - MOST_LINES} more lines"
