"""Tells whether an earlier attempt of this run has saved a checkpoint, from which ranks that torchrun starts again go
on.

torchrun counts restarts on each node by itself, so ranks of one attempt may have different counts. Its store outlives
the ranks: rank 0 notes there which checkpoint was the newest when the run began. A checkpoint of an earlier run in the
same folder is none of this one.
"""

from pathlib import Path

from ..checkpoints.folder import KeptCheckpoints
from .heartbeat import attempt
from .torchrun_store import StatusStore, has_store

RUN, BEGAN = "run", "newest checkpoint at the start"  # the notes of all attempts, and the key of this one
NONE = "none"


def has_saved(folder: Path) -> bool:
    """Whether this run has saved to the folder. Raises EngineError if the folder's list of checkpoints is damaged.

    A store that ends with the ranks says nothing; then the count of restarts decides.
    """
    if not has_store():
        return attempt() > 0 and _newest(folder) != NONE
    began = StatusStore(RUN).get(BEGAN)
    return began is not None and began != _newest(folder)


def note_start(folder: Path) -> None:
    """Notes that the run may go on from what it saves to the folder from now on; later attempts change nothing."""
    if has_store():
        StatusStore(RUN).set_if_absent(BEGAN, _newest(folder))


def _newest(folder: Path) -> str:
    """The name of the newest checkpoint in a run's folder; `NONE` without one."""
    return next(reversed(KeptCheckpoints.read(folder).names), NONE)
