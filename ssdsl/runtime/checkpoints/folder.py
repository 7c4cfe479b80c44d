"""A run's folder: a folder for each checkpoint, and `latest`, which says which are whole.

    runs/a/latest                         {"latest": "step-00000200", "kept": [...], "removing": [...]}
    runs/a/step-00000100/.metadata        what torch.distributed.checkpoint reads, written last
    runs/a/step-00000100/__0_0.distcp     the tensors that rank 0 wrote
    runs/a/step-00000100/state.json       all that is no tensor
    runs/a/step-00000100/sums.json        checksums

A checkpoint counts once `latest` lists it: that file is replaced in one rename, after all that it speaks of is on the
disk. Whenever the run dies, `latest` names a whole checkpoint. A folder without `.metadata` is half written.
"""

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import EngineError

LATEST, METADATA, STATE, SUMS = "latest", ".metadata", "state.json", "sums.json"
STEP = re.compile(r"step-\d{8,}(-\d+)?")


@dataclass(frozen=True)
class KeptCheckpoints:
    """What `latest` says: the names of whole checkpoints, the newest last, and those that are being removed."""

    names: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()

    @classmethod
    def read(cls, run: Path) -> "KeptCheckpoints":
        """Nothing where there is no such file; raises EngineError for one that nobody can read."""
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
        """Replaces the file; whoever reads it finds the old one or the new one."""
        text = json.dumps({"latest": self.names[-1], "kept": self.names, "removing": self.removing}, indent=1)
        write_synced(run / f".{LATEST}", text)
        os.replace(run / f".{LATEST}", run / LATEST)
        sync_folder(run)


def newest(folder: Path) -> Path:
    """The checkpoint that a path speaks of: itself, or the newest of a run. Raises EngineError where there is none."""
    if (folder / METADATA).exists():
        return folder
    if not folder.exists():
        raise EngineError(f"there is no folder `{folder}`", "name a folder that `save` wrote to")
    kept = KeptCheckpoints.read(folder)
    if kept.names:
        return folder / kept.names[-1]
    raise EngineError(
        f"`{folder}` holds no checkpoint: it has neither `{LATEST}` nor `{METADATA}`",
        "name a run's folder, or one of the checkpoints in it",
    )


def has_checkpoint(folder: Path) -> bool:
    """Whether there is something that `newest` finds, or that is damaged."""
    return (folder / METADATA).exists() or (folder / LATEST).exists()


def begin(run: Path, step: int) -> Path:
    """A new folder for a checkpoint, empty; what a run that died has left behind is removed."""
    _make(run)
    kept = KeptCheckpoints.read(run)
    for folder in sorted(run.iterdir()):
        half = STEP.fullmatch(folder.name) and folder.is_dir() and not (folder / METADATA).exists()
        if folder.name in kept.removing or (half and folder.name not in kept.names):
            remove(folder)
    name = first = f"step-{step:08d}"
    again = 1
    while (
        name in kept.names
    ):  # the run went back to an earlier step: the one of that name stays until this one is whole
        again += 1
        name = f"{first}-{again}"
    remove(run / name)  # whole, but its run died before `latest` could list it
    (run / name).mkdir()
    return run / name


def finish(folder: Path, keep: int | None) -> None:
    """The checkpoint is whole: it becomes the latest of its run, and all but the newest `keep` are removed."""
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
    """Removes a checkpoint; one that is removed in part is half written."""
    if not folder.exists():
        return
    (folder / METADATA).unlink(missing_ok=True)
    shutil.rmtree(folder)


def write_synced(path: Path, text: str) -> None:
    """Writes a file and waits until the disk has it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make(folder: Path) -> None:
    """The folder and those above it, all on the disk."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
