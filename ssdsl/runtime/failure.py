"""How a rank ends when it cannot go on: it says where and why, leaves no half-written file, and waits for nobody."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .errors import EngineError
from .pulse import Pulse
from .stall import place, stall_in

TIMEOUT = ("Timed out", "timed out", "timeout")


def report_failure(
    error: BaseException, rank: int, pulse: Pulse | None, folder: Path, ranks: int, timeout_s: float
) -> None:
    """Say on stderr, and in the rank's files, where it failed and why."""
    says_all = isinstance(error, SystemExit | EngineError)
    text = str(error) if says_all else "".join(traceback.format_exception(error))
    where = f"rank {rank}"
    if pulse is not None:
        pulse.stop()
        where += f", role {pulse.known['role']}, {place(pulse.known)}" if pulse.known["role"] else ""
        if any(sign in str(error) for sign in TIMEOUT):
            text += _stalled(folder, ranks, timeout_s)
    message = f"{where}:\n{text}"
    if pulse is not None:
        pulse.failed(message, mistake=text if isinstance(error, EngineError) else None)
    with contextlib.suppress(OSError), whole(folder / f"rank{rank}.err") as beside:
        beside.write_text(message)
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def _stalled(folder: Path, ranks: int, timeout_s: float) -> str:
    """The rank that this one waited for, if it runs on this machine."""
    stall = stall_in(folder, ranks, time.time(), timeout_s / 2)
    if stall is None:
        return ""
    return f"\nrank {stall.rank} has not moved for {stall.since_s:.0f} s: {stall.how}; it is in {stall.doing}\n"


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


def state_folder(out: Path | None) -> Path:
    """Where the ranks of this machine write what they do: with the results, or in a folder of this run."""
    run = f"{os.environ.get('TORCHELASTIC_RUN_ID', 'run')}-{os.environ.get('MASTER_PORT', '0')}"
    folder = out if out is not None else Path(tempfile.gettempdir()) / f"ssdsl-{os.getuid()}-{run}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def leave(folder: Path, out: Path | None) -> None:
    """Remove the folder of a run that nobody asked for; the last rank to leave does."""
    if out is None:
        shutil.rmtree(folder, ignore_errors=True)
