"""Ends a rank that cannot go on: it reports where and why it failed, leaves no half-written file, and waits for no
other rank."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import EngineError
from .stall import StalledRank, place
from .watchdog import Watchdog, report_stall


def report_failure(error: BaseException, rank: int, watchdog: Watchdog | None, folder: Path | None) -> None:
    """Reports on stderr, and in the rank's files in `folder`, where the rank failed and why.

    A communication may fail because another rank has ended the run. Then that rank's reason, which the watchdog knows,
    is reported in place of this one's.
    """
    where, text, verdict = f"rank {rank}", _text(error), None
    if watchdog is not None:
        watchdog.heartbeat.stop()
        watchdog.end()
        verdict = watchdog.verdict() if isinstance(error, RuntimeError) else None
        if isinstance(verdict, StalledRank):
            report_stall(watchdog.heartbeat, verdict, folder, whole=False)
            return
        known = watchdog.heartbeat.known
        where += f", role {known['role']}, {place(known)}" if known["role"] else ""
    if isinstance(verdict, str):
        text = f"it lost a rank that failed: {verdict}"
    message = f"{where}:\n{text}"
    if watchdog is not None:
        watchdog.heartbeat.failed(message, mistake=text if isinstance(error, EngineError) else None)
        if not known["wait"]:  # a rank that was waiting failed because of another rank, which reports the reason
            last = (text.strip().splitlines() or [""])[-1]
            watchdog.failed(f"{where}: {last}")
    if folder is not None:
        with contextlib.suppress(OSError), written_whole(folder / f"rank{rank}.err") as beside:
            beside.write_text(message)
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def _text(error: BaseException) -> str:
    """The message of an error that a user can correct; the traceback of any other."""
    says_all = isinstance(error, SystemExit | EngineError)
    return str(error) if says_all else "".join(traceback.format_exception(error))


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`. It replaces `path` when the block ends, and is removed if the block fails."""
    beside = path.with_name(f".{path.name}")
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def save(tensors: dict[str, Any], path: Path) -> None:
    """Saves with torch.save, completely or not at all."""
    with written_whole(path) as beside:
        torch.save(tensors, beside)


def prepare_folder(folder: Path, rank: int) -> None:
    """Makes the folder of the ranks' files, and removes files that this rank left in an earlier attempt.

    The first rank removes all reports of an earlier run: it collects those that its folder does not have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.err").unlink(missing_ok=True)
    for report in folder.glob("rank*.json") if rank == 0 else ():
        report.unlink(missing_ok=True)
    progress = folder / "metrics.jsonl"
    if rank == 0 and progress.exists() and not progress.read_bytes().endswith(b"\n"):  # killed while it wrote
        with progress.open("a") as file:
            file.write("\n")
