"""Remembers that Ctrl-C was pressed, because code of others may swallow the KeyboardInterrupt.

NumPy does, while torch imports it; torch then goes on or fails with another error. So a command asks `was_interrupted`
before it does something long, and before it reports an error as a bug of ssdsl.
"""

import contextlib
import signal
from types import FrameType

_seen = False


def note_interrupts() -> None:
    """Remembers Ctrl-C from now on. If it is ignored, as in a background job of a shell, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, _note)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed since the start, or since `forget_interrupt`."""
    return _seen


def forget_interrupt() -> None:
    """Forgets a Ctrl-C that was handled: the command goes on."""
    global _seen
    _seen = False


def _note(number: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    signal.default_int_handler(number, frame)
