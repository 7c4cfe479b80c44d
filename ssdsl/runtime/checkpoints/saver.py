"""Saves checkpoints while training goes on: `save` returns once the tensors are copied, and a thread writes them.

All ranks go through the same stages. After each stage they vote, so that all ranks learn of an error on one:

    copy      each rank: what it owns, to the memory of the host
    begin     the first rank: a new folder
    write     each rank: its file; then the first rank gathers what was written
    finish    the first rank: the facts, `.metadata`, and then `latest`
"""

import atexit
import contextlib
import errno
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path as Folder

import torch

from ..errors import EngineError
from ..ranks.control import Control
from ..ranks.transport import settle
from ..step.parts import LocalTensor
from .content import Content, Path, Scalar
from .folder import STATE, SUMS, KeptCheckpoints, begin, finish, remove, write_synced
from .plain import to_json
from .saving_lock import release
from .writer import Written, finish_metadata, sums_text, write_part, write_scalars

SHARED = "save to a disk that all nodes have in common"
APPEARS_S = 5.0
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_TEXTS = ("PytorchStreamWriter", "unexpected pos", "No space left", "quota exceeded")  # what torch.save raises


class Saver:
    """Saves a run's checkpoints, one at a time. All ranks make the same calls.

    `control` belongs to the saver alone, because its thread communicates while training does too. Without `background`
    a save ends before `save` returns; ranks that are threads of one process need that.
    """

    def __init__(self, control: Control, background: bool = True) -> None:
        self.control, self.background = control, background
        self._buffers: dict[Path, torch.Tensor] = {}
        self._runs: set[Folder] = set()  # the folders that it has saved to
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, run: Folder | str, step: int, content: Content, keep: int | None = 3, wait: bool = False) -> None:
        """Saves into a new folder of the run, and keeps the newest `keep` checkpoints (all if None).

        Waits for the previous save first. Raises EngineError, on all ranks, if that one failed; with `wait` also if
        this one fails.
        """
        self.wait()
        staged: _Staged | Exception
        try:
            staged = self._stage(content)
        except Exception as error:  # such as too little memory: the other ranks learn of it at the first vote
            staged = error
        folder = Folder(run)
        self._runs.add(folder)

        def work() -> None:
            try:
                _save(self.control, folder, step, staged, keep)
            except Exception as error:
                self._error = error

        if not self.background:
            work()
            self._raise()
            return
        self._thread = threading.Thread(target=work, name="saves a checkpoint", daemon=True)
        self._thread.start()
        atexit.register(self._end)  # so that the last checkpoint of a script that ends is complete
        if wait:
            self.wait()

    def wait(self) -> None:
        """Waits until the last save has ended; raises EngineError if it failed."""
        if self._thread is not None:
            self._thread.join()
            atexit.unregister(self._end)
            self._thread = None
        self._raise()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.join()
            settle()

    def close(self) -> None:
        """Waits for the last save, frees the copies, and lets other runs save to its folders."""
        try:
            self.wait()
        finally:
            self._buffers.clear()
            for run in self._runs if self.control.rank == 0 else ():
                release(run)
            self._runs.clear()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if isinstance(error, EngineError):
            raise EngineError(error.reason, error.help) from error
        if error is not None:  # another rank has ended: the error is the transport's
            raise EngineError(f"a checkpoint was not saved: {error}") from error

    def _stage(self, content: Content) -> "_Staged":
        """Copies this rank's own tensors into memory that is reused by the next save."""
        tensors = {}
        for path, held in content.tensors.items():
            if held.owns:
                tensors[path] = replace(held, tensor=self._copied(path, held.tensor.detach()))
        if any(held.tensor.is_cuda for held in content.tensors.values()):
            torch.cuda.synchronize()
        for path in self._buffers.keys() - tensors.keys():
            del self._buffers[path]
        facts = to_json({**content.facts, "aliases": dict(content.aliases)}) if self.control.rank == 0 else ""
        return _Staged(tensors, _own_scalars(content), facts, dict(content.aliases))

    def _copied(self, path: Path, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = self._buffers[path] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return buffer.copy_(tensor, non_blocking=tensor.is_cuda)


@dataclass(frozen=True)
class _Staged:
    """A rank's part of a checkpoint at the time of `save`. `facts` is JSON."""

    tensors: dict[Path, LocalTensor]
    scalars: dict[Path, Scalar]
    facts: str
    aliases: dict[str, str]


def _own_scalars(content: Content) -> dict[Path, Scalar]:
    """The numbers that this rank saves: those beside a tensor that it owns, and those without any tensor."""
    beside: dict[Path, bool] = {}
    for path, held in content.tensors.items():
        beside[path[:-1]] = beside.get(path[:-1], False) or held.owns
    return {
        path: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
        for path, value in content.scalars.items()
        if beside.get(path[:-1], True)
    }


def _save(control: Control, run: Folder, step: int, staged: _Staged | Exception, keep: int | None) -> None:
    """Does everything after the copy."""
    name = b""
    with control.together(), _failing(run):
        if isinstance(staged, Exception):
            raise staged
        if control.rank == 0:
            name = begin(run, step).name.encode()
    folder = run / control.broadcast(name).decode()
    try:
        with control.together(), _failing(run):
            message = _write(folder, control.rank, staged)
        messages = control.gather(message)
        with control.together(), _failing(run):
            if messages is not None:
                _finish(folder, messages, staged, keep)
    except EngineError:
        if control.rank == 0:
            with contextlib.suppress(OSError, EngineError):
                _discard(folder)
        raise


def _write(folder: Folder, rank: int, staged: _Staged) -> bytes:
    if not _appears(folder):
        raise EngineError(f"`{folder}`, which rank 0 has made, is not there", SHARED)
    written = write_part(folder, rank, staged.tensors)
    written.scalars = staged.scalars
    return pickle.dumps(written)  # a message to rank 0, never in a file


def _appears(path: Folder) -> bool:
    """Whether a path exists, now or within the seconds for which a network disk may show a stale folder."""
    end = time.monotonic() + APPEARS_S
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _finish(folder: Folder, messages: list[bytes], staged: _Staged, keep: int | None) -> None:
    parts: list[Written] = list(map(pickle.loads, messages))
    for rank, part in enumerate(parts):
        for name in {result.storage_data.relative_path for result in part.results}:
            if not _appears(folder / name):
                raise EngineError(f"rank 0 does not see `{folder / name}`, which rank {rank} wrote", SHARED)
    parts.append(write_scalars(folder, len(messages), parts))
    write_synced(folder / STATE, staged.facts)
    write_synced(folder / SUMS, sums_text(parts))
    finish_metadata(folder, parts, staged.aliases)
    finish(folder, keep)


def _discard(folder: Folder) -> None:
    """Removes an incomplete checkpoint; one that `latest` lists stays."""
    if folder.name not in KeptCheckpoints.read(folder.parent).names:
        remove(folder)


@contextlib.contextmanager
def _failing(run: Folder) -> Iterator[None]:
    """A context in which any failure becomes an EngineError that says why nothing was saved."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        if (isinstance(error, OSError) and error.errno in FULL) or any(sign in str(error) for sign in FULL_TEXTS):
            reason, change = "its disk is full", "free some space, or save elsewhere"
        elif isinstance(error, OSError):
            reason, change = (error.strerror or str(error)).lower(), "name a folder that every rank may write to"
        else:
            reason, change = f"{type(error).__name__}: {error}", "the checkpoint before it is whole"
        raise EngineError(f"cannot save to `{run}`: {reason}", change) from error
