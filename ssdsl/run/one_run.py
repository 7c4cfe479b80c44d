"""Locks a run's folder, because two runs at a time would mix their results.

The lock is the kernel's (`flock`) on a file in the folder, so it ends with its process, however that ends. The process
number in the file is only for the message, and means nothing once the lock is free. On NFS, Linux locks on the server,
which holds between hosts. On a file system without locks nothing is checked, because a process number says nothing
about a process of another host. Each node of a run has a folder of its own.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ssdsl.run.errors import OtherRunInFolder
from ssdsl.text.diagnostic import PlanError

TEMPORARY = "ssdsl-"  # so begin the names of temporary folders
LOCK = ".lock"  # never removed: another process may have locked a new file of the same name by then
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextlib.contextmanager
def one_run(folder: Path) -> Iterator[None]:
    """A context in which the folder, created if need be, belongs to this process. Raises PlanError if another process
    has it, and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        if not _locks(file):
            file.seek(0)
            raise PlanError(OtherRunInFolder(None, str(folder), file.read() or "another process"))
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


@contextlib.contextmanager
def temporary_run() -> Iterator[Path]:
    """A context with a temporary folder that belongs to this process. Folders that killed processes have left are
    removed before. Raises OSError."""
    for lock in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/{LOCK}"):
        with contextlib.suppress(OSError):
            _remove_left(lock)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True) as name, one_run(Path(name)):
        yield Path(name)


def _remove_left(lock: Path) -> None:
    """Removes a temporary folder of this user whose process has ended; one of the last minute may yet be locked."""
    owner, age_s = lock.parent.lstat().st_uid, time.time() - lock.stat().st_mtime
    if owner == os.getuid() and age_s > 60:
        with lock.open("a+") as file:
            if _locks(file):
                shutil.rmtree(lock.parent)


def _locks(file: TextIO) -> bool:
    """Whether this process has locked the file now; also where the file system has no locks. Raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    return True
