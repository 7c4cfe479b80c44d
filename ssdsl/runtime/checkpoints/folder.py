"""A run's folder: a folder for each checkpoint, and the file `latest`, which lists the complete ones.

    runs/a/latest                         {"latest": "step-00000200", "kept": [...], "removing": [...]}
    runs/a/.saving                        locked by the run that saves here
    runs/a/step-00000100/.metadata        what torch.distributed.checkpoint reads, written last
    runs/a/step-00000100/__0_0.distcp     the tensors that rank 0 wrote
    runs/a/step-00000100/state.json       all that is no tensor
    runs/a/step-00000100/sums.json        checksums

A checkpoint counts once `latest` lists it. That file is replaced in one rename, after everything it refers to is on the
disk. So whenever the run dies, `latest` names a complete checkpoint. A folder without `.metadata` is incomplete.
"""

import contextlib
import errno
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import EngineError
from .saving_lock import hold

LATEST, METADATA, STATE, SUMS = "latest", ".metadata", "state.json", "sums.json"
WITHOUT_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP)
STEP = re.compile(r"step-\d{8,}(-\d+)?")


@dataclass(frozen=True)
class KeptCheckpoints:
    """The content of `latest`: names of complete checkpoints, newest last, and of those that are being removed."""

    names: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()

    @classmethod
    def read(cls, run: Path) -> "KeptCheckpoints":
        """Reads the file; empty if there is none. Raises EngineError for a file that cannot be parsed."""
        try:
            found = json.loads((run / LATEST).read_text())
            return cls((*found["kept"],), (*found["removing"],))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"`{run / LATEST}` cannot be read: {error}", "name one of the checkpoints beside it"
            ) from error

    def write(self, run: Path) -> None:
        """Replaces the file atomically: a reader finds either the old or the new one."""
        text = json.dumps({"latest": self.names[-1], "kept": self.names, "removing": self.removing}, indent=1)
        write_synced(run / f".{LATEST}", text)
        os.replace(run / f".{LATEST}", run / LATEST)
        sync_folder(run)


def newest(folder: Path) -> Path:
    """The checkpoint at a path: the path itself, or the newest of a run. Raises EngineError if there is none."""
    if (folder / METADATA).exists():
        return folder
    if not folder.exists():
        raise EngineError(f"there is no folder `{folder}`", "name a folder of checkpoints: a run's, or one in it")
    if not folder.is_dir():
        raise EngineError(f"`{folder}` is a file, not a folder", "name a run's folder, or one of the checkpoints in it")
    kept = KeptCheckpoints.read(folder)
    if kept.names:
        return folder / kept.names[-1]
    raise EngineError(
        f"`{folder}` holds no checkpoint: it has neither `{LATEST}` nor `{METADATA}`",
        "name a run's folder, or one of the checkpoints in it",
    )


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder holds a checkpoint, complete or damaged."""
    return (folder / METADATA).exists() or (folder / LATEST).exists()


def reserve(run: Path) -> None:
    """Makes a run's folder, and locks it for this process. Raises EngineError if another process saves to it, and
    OSError."""
    _make(run)
    hold(run)


def begin(run: Path, step: int) -> Path:
    """Makes an empty folder for a checkpoint, and removes an incomplete one that a run left behind. Raises EngineError
    if another process saves to the run's folder."""
    reserve(run)
    kept = KeptCheckpoints.read(run)
    for folder in sorted(run.iterdir()):
        half = STEP.fullmatch(folder.name) and folder.is_dir() and not (folder / METADATA).exists()
        if folder.name in kept.removing or (half and folder.name not in kept.names):
            remove(folder)
    name = first = f"step-{step:08d}"
    again = 1
    while (
        name in kept.names
    ):  # the run went back to an earlier step: the checkpoint of that name stays until the new one is complete
        again += 1
        name = f"{first}-{again}"
    remove(run / name)  # complete, but its run died before `latest` could list it
    (run / name).mkdir()
    return run / name


def finish(folder: Path, keep: int | None) -> None:
    """Lists the checkpoint as the latest of its run, and removes all but the newest `keep`."""
    run = folder.parent
    sync_folder(folder)
    sync_folder(run)
    before = KeptCheckpoints.read(run)
    names = (*before.names, folder.name)
    kept = names[-keep:] if keep else names
    gone = tuple(n for n in (*before.removing, *names) if n not in kept and (run / n).exists())
    KeptCheckpoints(kept, gone).write(run)
    with contextlib.suppress(OSError):  # it stays in the list, and the next save tries again
        for name in gone:
            remove(run / name)


def remove(folder: Path) -> None:
    """Removes a checkpoint. One that is removed only in part counts as incomplete."""
    if not folder.exists():
        return
    (folder / METADATA).unlink(missing_ok=True)
    shutil.rmtree(folder)


def write_synced(path: Path, text: str) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk. Some network disks do not know this for folders; there they
    are as safe as the disk makes them."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in WITHOUT_SYNC:
            raise
    finally:
        os.close(handle)


def _make(folder: Path) -> None:
    """Makes the folder and its parents, and waits until they are on the disk."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
