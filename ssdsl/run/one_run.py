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
import socket
from collections.abc import Iterator
from pathlib import Path

from ssdsl.run.errors import OtherRunInFolder
from ssdsl.text.diagnostic import PlanError

LOCK = ".lock"  # never removed: another process may have locked a new file of the same name by then
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextlib.contextmanager
def one_run(folder: Path) -> Iterator[None]:
    """A context in which the folder, created if need be, belongs to this process. Raises PlanError if another process
    has it, and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise PlanError(OtherRunInFolder(None, str(folder), file.read() or "another process")) from error
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
