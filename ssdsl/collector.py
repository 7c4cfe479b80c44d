"""Pauses Python's cyclic garbage collector: graphs and programs are millions of small values without reference cycles,
and traversing them again and again takes as long as making them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Runs the body without the cyclic garbage collector. Values without cycles are freed as ever; cycles wait until
    the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # freeze and unfreeze move all new objects to the oldest generation, which Python seldom traverses
            gc.freeze()
            gc.unfreeze()
            gc.enable()
