"""Finds the reason of a failed run: the rank that failed first, its error, and the change to make."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from ssdsl.run.data_errors import TrainingStopped
from ssdsl.run.errors import DiskFull, FolderUnwritable, LaunchFailed, OutOfMemory, RankFailed, RankStuck
from ssdsl.run.out_of_resources import FULL, Lack, lack_in, lack_of
from ssdsl.runtime.health.stall import StalledRank, place, read_states
from ssdsl.runtime.program.codec import decoded
from ssdsl.text.diagnostic import Diagnostic, PlanError

LINES = 25
LOGS = "`--out DIR` keeps the output of every rank in DIR/logs"
HELP = "  help: "  # the start of the last line of an EngineError
MEMORY = "the machine may have run out of memory: take a smaller model, or cut it into more parts"


@dataclass(frozen=True, slots=True)
class _Report:
    """A rank's report of its failure, and its time; `stall` if it ended because another rank hangs."""

    rank: int
    time_s: float
    text: str
    mistake: str | None = None
    stall: StalledRank | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a rank, with its number on its node; the code is negative for a signal."""

    local_rank: int
    code: int


def failure(out: Path, status: int, exits: dict[int, Exit], timeout_s: float) -> Diagnostic:
    """The diagnostic of a failed run, from the files in `out`, torchrun's exit status and those of the ranks.

    Too little memory or disk comes first, because it explains the rest; then a mistake of the user that all ranks
    report, then a rank that hangs. Ranks that were killed, or ended without writing an error, come before the earliest
    rank with an error, which mostly reports that those went away.
    """
    reports = _reports(out)
    for one in reports.values():
        if lack := lack_in(one.text):
            return _lacking(lack, one, out)
    if (mistake := next((one.mistake for one in reports.values() if one.mistake is not None), None)) is not None:
        return stopped(mistake)
    if (stall := next((one.stall for one in reports.values() if one.stall is not None), None)) is not None:
        return stuck(stall, timeout_s)
    silent = [rank for rank, end in exits.items() if rank not in reports and end.code != -signal.SIGTERM]
    if silent:
        rank = min(silent, key=lambda r: (exits[r].code > 0, r))
        log = _log(out, exits[rank].local_rank)
        was = _was(out, rank)
        if lack := lack_in(log):
            return _lacking(lack, _Report(rank, 0.0, f"rank {rank}, {was}:\n{log}"), out)
        note = "\n".join([f"it was in {was}", log or "it printed nothing"])
        code = exits[rank].code
        return RankFailed(None, rank, _ending(code), note, MEMORY if code == -signal.SIGKILL else LOGS)
    if reports:
        first = next(iter(reports.values()))
        return RankFailed(None, first.rank, "failed", _tail(first.text), LOGS)
    log = _read(out / "torchrun.log")
    if lack := lack_in(log):
        return _lacking(lack, _Report(-1, 0.0, f"torchrun:\n{log}"), out)
    return LaunchFailed(None, status, _tail(log), str(out / "torchrun.log"))


def failed_ranks(out: Path) -> list[int]:
    """The ranks that have written an error."""
    return list(_reports(out))


def stuck(stall: StalledRank, limit_s: float) -> RankStuck:
    """The diagnostic of a rank that does not move."""
    waiting = "\n".join(stall.waiting[:4] + (("and more",) if len(stall.waiting) > 4 else ()))
    role = f", role {stall.role}," if stall.role else ""
    waiting = f"these wait for others:\n{waiting}" if waiting else "no other rank waits"
    return RankStuck(None, stall.rank, role, round(stall.since_s), stall.how, stall.where, waiting, f"{2 * limit_s:g}")


@contextmanager
def writing(folder: Path, file: Path | None = None) -> Iterator[None]:
    """A context in which a folder that takes no file becomes a diagnostic. `file` is what is written, for the
    message."""
    try:
        yield
    except PlanError:
        raise
    except OSError as error:
        raise PlanError(_unwritable(error, folder)) from error
    except Exception as error:  # torch.save and safetensors say in their own ways that the disk is full
        if (lack := lack_of(error, str(file or folder))) is None:
            raise
        raise PlanError(lack) from error


def _unwritable(error: OSError, folder: Path) -> Diagnostic:
    reason = (error.strerror or str(error)).lower()
    if error.errno in FULL:
        return DiskFull(None, "ssdsl", str(folder), reason)
    return FolderUnwritable(None, str(folder), reason)


def printed(agent: "Popen[bytes]") -> dict[int, Exit]:
    """The exits of ranks that torchrun saw fail, parsed from its output."""
    assert agent.stdout is not None
    os.set_blocking(agent.stdout.fileno(), False)
    try:
        return {f["rank"]: Exit(f["local_rank"], f["exitcode"]) for f in json.loads(agent.stdout.read() or b"[]")}
    except ValueError:
        return {}


def _reports(out: Path) -> dict[int, _Report]:
    """The failure reports of the ranks, earliest first."""
    found = {}
    for path in out.glob("rank*.err"):
        text, rank = _read(path), int(path.stem.removeprefix("rank"))
        found[rank] = _Report(rank, path.stat().st_mtime, text)
    for rank, state in read_states(out).items():  # complete even if the disk is full
        if (failed := state["failed"]) is not None:
            stall = decoded(StalledRank, failed["stall"]) if failed["stall"] is not None else None
            found[rank] = _Report(rank, failed["time"], failed["text"], failed.get("mistake"), stall)
    return {report.rank: report for report in sorted(found.values(), key=lambda report: report.time_s)}


def stopped(mistake: str) -> TrainingStopped:
    """The diagnostic for a user's mistake that all ranks report: a fact, details, and changes to make."""
    lines = mistake.splitlines()
    changes = [line.strip().removeprefix("help: ") for line in lines if line.startswith(HELP)]
    fact, *rest = [line.strip() for line in lines if not line.startswith(HELP)] or [""]
    return TrainingStopped(None, fact, "\n".join(rest), "\n".join(dict.fromkeys(changes)) or LOGS)


def _lacking(lack: Lack, report: _Report, out: Path) -> Diagnostic:
    """The diagnostic for a process without memory or disk; the first line of its report says where it was."""
    where, _, rest = report.text.strip().partition("\n")
    who, _, place = where.removesuffix(":").partition(", ")
    reason = (rest.strip().splitlines() or [where])[-1].strip()
    if place:
        reason = f"where: {place}\n{reason}"
    return DiskFull(None, who, str(out), reason) if lack is Lack.DISK else OutOfMemory(None, who, reason)


def _was(out: Path, rank: int) -> str:
    """The activity of a rank when it ended."""
    state = read_states(out).get(rank)
    return place(state) if state is not None else "its start"


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def _log(out: Path, local_rank: int) -> str:
    found = sorted(out.glob(f"logs/*/attempt_*/{local_rank}/stderr.log"))
    return _tail(_read(found[-1])) if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _tail(text: str) -> str:
    """The last lines of a text."""
    return "\n".join(text.strip().splitlines()[-LINES:])
