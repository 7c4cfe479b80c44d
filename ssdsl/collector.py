"""Python's search for cycles, paused: programs are millions of small values without any, and looking through them again
and again takes as long as making them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Nothing is lost: values without cycles are freed as ever, what has some waits until the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
