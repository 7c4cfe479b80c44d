"""Activation checkpointing: a function's activations are freed and computed again in backward.

Some of its results need not be kept either. If an operator saves such a result for its backward, autograd keeps a
source in its place (`regather.py`): when that backward reads it, the function runs again, once for this result and for
all that its own backward needs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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


def checkpoint(run: Callable[..., Any], *args: Any, again: Sequence[int] = ()) -> Any:
    """run(*args) with recomputation: autograd saves only the inputs, and backward runs it again. The results with the
    numbers `again` are not kept for their readers' backward, if the block also runs with `again`."""
    world = here()

    def marked(*args: Any) -> Any:
        return _marked(run(*args), again, world)

    return torch.utils.checkpoint.checkpoint(
        marked if again and torch.is_grad_enabled() else run,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), recomputing(world)),
    )


def on_host(run: Callable[..., Any], *args: Any) -> Any:
    """run(*args), of which autograd keeps copies on the host, but for what the device has anyway: weights, and what
    enters the block."""
    if not torch.is_grad_enabled():
        return run(*args)
    with here().gathered.on_host():
        return run(*args)


def _marked(result: Any, again: Sequence[int], world: World) -> Any:
    """The results of a recomputed function; those with the numbers `again` have a source."""
    results = [result] if isinstance(result, torch.Tensor) else [*result]
    made = _Made()
    marked = _Results.apply(made, *(results[n] for n in again))  # type: ignore[no-untyped-call]
    for place, (number, y) in enumerate(zip(again, marked, strict=True)):
        world.gathered.note(y, _Source(y.grad_fn, place, made))
        results[number] = y
    return results[0] if isinstance(result, torch.Tensor) else tuple(results)


@dataclass(eq=False)
class _Made:
    """Results that were made again, until the backward of all their readers has run."""

    values: tuple[torch.Tensor, ...] = ()


@dataclass(eq=False)
class _Source:
    """A result of a recomputed function. `node` saves the results as all that the function saves: they are computed
    again when it reads them."""

    node: Any
    place: int
    made: _Made

    def made_again(self) -> torch.Tensor:
        if not self.made.values:
            self.made.values = self.node.saved_tensors
        return self.made.values[self.place]


class _Results(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: _Made, *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(*results)
        ctx.set_materialize_grads(False)
        ctx.made = made
        return tuple(y.view_as(y) for y in results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.made.values = ()  # the backward of their readers has run
        return None, *gradients
