"""Remembers Ctrl-C, which code of others may swallow: NumPy does while torch imports it, which then goes on or fails.

Python raises KeyboardInterrupt wherever the program happens to be. A command asks here before it does something long,
and where it would take an error for a bug.
"""

import contextlib
import signal
from types import FrameType

_seen = False


def note_interrupts() -> None:
    """Remembers Ctrl-C from now on. Where it is ignored, as in a background job of a shell, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, _note)


def was_interrupted() -> bool:
    """Whether there was a Ctrl-C that nobody has answered."""
    return _seen


def answered() -> None:
    """Forgets a Ctrl-C, after which the command goes on."""
    global _seen
    _seen = False


def _note(number: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    signal.default_int_handler(number, frame)
