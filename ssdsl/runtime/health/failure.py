"""How a rank ends when it cannot go on: it says where and why, leaves no half-written file, and waits for nobody."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import EngineError
from .heartbeat import Heartbeat
from .stall import Stall, place
from .watchdog import Watchdog, last_words


def report_failure(
    error: BaseException, rank: int, heartbeat: Heartbeat | None, watchdog: Watchdog | None, folder: Path | None
) -> None:
    """Say on stderr, and in the rank's files, where it failed and why.

    A rank that fails in a call on others may do so because one of them has ended the run: then that is the reason.
    """
    if heartbeat is not None:
        heartbeat.stop()
    if watchdog is not None:
        watchdog.end()
    verdict = watchdog.verdict() if watchdog is not None and isinstance(error, RuntimeError) else None
    if heartbeat is not None and isinstance(verdict, Stall):
        last_words(heartbeat, verdict, folder, whole=False)
        return
    says_all = isinstance(error, SystemExit | EngineError)
    text = str(error) if says_all else "".join(traceback.format_exception(error))
    if isinstance(verdict, str):
        text = f"it lost a rank that failed: {verdict}"
    where = f"rank {rank}"
    if heartbeat is not None:
        where += f", role {heartbeat.known['role']}, {place(heartbeat.known)}" if heartbeat.known["role"] else ""
    message = f"{where}:\n{text}"
    if heartbeat is not None:
        heartbeat.failed(message, mistake=text if isinstance(error, EngineError) else None)
        if watchdog is not None and not heartbeat.known["wait"]:  # not one that has only lost another
            last = (text.strip().splitlines() or [""])[-1]
            watchdog.failed(f"{where}: {last}")
    if folder is not None:
        with contextlib.suppress(OSError), whole(folder / f"rank{rank}.err") as beside:
            beside.write_text(message)
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; it becomes `path` when all is written, and is removed if that fails."""
    beside = path.with_name(f".{path.name}")
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def save(tensors: dict[str, Any], path: Path) -> None:
    """torch.save, in full or not at all."""
    with whole(path) as beside:
        torch.save(tensors, beside)


def prepare_folder(folder: Path, rank: int) -> None:
    """The folder of the ranks' files, without what this rank left of an earlier attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.err").unlink(missing_ok=True)
    progress = folder / "metrics.jsonl"
    if rank == 0 and progress.exists() and not progress.read_bytes().endswith(b"\n"):  # a rank died while it wrote
        with progress.open("a") as file:
            file.write("\n")
