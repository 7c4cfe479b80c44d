"""Recognises errors of too little memory or disk. Does not import torch, which may be what did not fit."""

import errno
import traceback
from enum import StrEnum

from ssdsl.run.errors import DiskFull, OutOfMemory
from ssdsl.text.diagnostic import Diagnostic

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LAST = 6  # the last lines of an error, which say what it is


class Lack(StrEnum):
    MEMORY = "memory"
    DISK = "disk"


SIGNS = {
    Lack.MEMORY: (
        "MemoryError",
        "can't allocate memory",
        "Cannot allocate memory",
        "bad_alloc",
        "out of memory",
        "OutOfMemoryError",
        "can't start new thread",
        "failed to map segment",
    ),
    # the last two are torch.save's
    Lack.DISK: (
        "No space left on device",
        "Disk quota exceeded",
        "File too large",
        "PytorchStreamWriter",
        "unexpected pos",
    ),
}


def lack_in(text: str) -> Lack | None:
    """The lacking resource, by the last lines of an error; None if it is another error.

    What the help of an error supposes is left out.

    >>> lack_in("rank 0: loading failed\\n  help: use fewer workers if the system ran out of memory")
    >>> lack_in("rank 0: MemoryError")
    <Lack.MEMORY: 'memory'>
    """
    lines = [line for line in text.strip().splitlines() if not line.lstrip().startswith("help: ")]
    last = "\n".join(lines[-LAST:])
    return next((lack for lack, signs in SIGNS.items() if any(sign in last for sign in signs)), None)


def lack_of(error: BaseException, folder: str = "") -> Diagnostic | None:
    """The diagnostic of an error of this process; None if it is another error."""
    text = "".join(traceback.format_exception_only(error)).strip()
    match lack_in(text):
        case Lack.MEMORY:
            return OutOfMemory(None, "ssdsl", text.splitlines()[-1])
        case Lack.DISK:
            name = str(getattr(error, "filename", None) or folder or "the disk")
            return DiskFull(None, "ssdsl", name, text.splitlines()[-1])
        case None:
            return None
