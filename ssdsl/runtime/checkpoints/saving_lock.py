"""Locks a run's folder while a process saves to it, because the checkpoints of two runs at a time would mix.

The lock is the kernel's on a file in the folder, and ends with the process, however that ends. It is a POSIX lock
(`lockf`), which processes that are forked, such as the workers of a loader, do not inherit: a run that is started again
does not find it held by them. Linux asks the server for it on NFS, so it holds between hosts. On a file system without
locks nothing is checked.
"""

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from ..errors import EngineError

SAVING = ".saving"  # never removed: another process may have locked a new file of the same name by then
TAKEN = (errno.EACCES, errno.EAGAIN)
_HELD: dict[Path, IO[str]] = {}  # by the run's folder; closing another handle of the file would end the lock


def hold(run: Path) -> None:
    """Locks the folder for this process, if it has not done so. Raises EngineError if another process saves to it, and
    OSError."""
    run = run.resolve()
    if run in _HELD:
        return
    file = (run / SAVING).open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            file.seek(0)
            who = file.read() or "another process"
            file.close()
            raise EngineError(
                f"another run saves to `{run}`: {who}", "save to another folder, or wait until that run has ended"
            ) from error
    _HELD[run] = file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    with contextlib.suppress(OSError):  # a full disk: the first checkpoint says so
        file.flush()


def release(run: Path) -> None:
    """Ends the lock of this process, if it has one."""
    if (file := _HELD.pop(run.resolve(), None)) is not None:
        with contextlib.suppress(OSError):
            file.close()
