"""Activation checkpointing: a function's activations are freed and computed again in backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.utils.checkpoint

from ..ranks.world import World, here


def is_recomputing() -> bool:
    """Whether a forward is recomputed: it must not update running statistics again."""
    return here().recomputing > 0


@contextmanager
def recomputing(world: World) -> Iterator[None]:
    """A context in which a forward of the rank is recomputed, in whichever thread backward runs."""
    world.recomputing += 1
    try:
        with world.enter():
            yield
    finally:
        world.recomputing -= 1


def checkpoint(run: Callable[..., Any], *args: Any) -> Any:
    """run(*args) with recomputation: autograd saves only the inputs, and backward runs it again."""
    world = here()
    return torch.utils.checkpoint.checkpoint(
        run,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), recomputing(world)),
    )
