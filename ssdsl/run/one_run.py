"""A folder has one run at a time: two that write their results into it would mix them.

The lock is the kernel's (`flock`) on a file in the folder, so it ends with the process that holds it, however that
ends; the process number in the file is for the message alone, and counts for nothing once the lock is free. On NFS,
Linux makes it a lock of the server, which holds between hosts. A file system without locks refuses it, and then nothing
is checked: a process number says nothing about a process of another host. Each node of a run has a folder of its own.
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

LOCK = ".lock"  # it stays: who removes it may remove another's, whose file has the same name
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


@contextlib.contextmanager
def one_run(folder: Path) -> Iterator[None]:
    """Within it the folder, which is made, is this process's. Raises PlanError if it is another's, and OSError."""
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
