"""Activation checkpointing: a function's activations are dropped and computed again in backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.utils.checkpoint

_recomputing = 0


def is_recomputing() -> bool:
    """Whether a forward runs for the second time: it then must not update running statistics again."""
    return _recomputing > 0


@contextmanager
def recomputing() -> Iterator[None]:
    """A context in which a forward runs for the second time."""
    global _recomputing
    _recomputing += 1
    try:
        yield
    finally:
        _recomputing -= 1


def checkpoint(run: Callable[..., Any], *args: Any) -> Any:
    """run(*args), of which autograd keeps only the inputs."""
    return torch.utils.checkpoint.checkpoint(
        run, *args, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (nullcontext(), recomputing())
    )
