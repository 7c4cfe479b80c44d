"""Joins a part to the parts before it, such as keys of a slice to those of earlier slices.

The parts are kept once, however many later ones read them: autograd saves the parts in place of the joined tensor, and
backward joins them again.

>>> extend((torch.tensor([1]), torch.tensor([2, 3])), torch.tensor([4]), dim=0).tolist()
[1, 2, 3, 4]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..layout.cut import joined, take
from ..layout.regions import parts_of
from .world import note_source


@dataclass(eq=False)
class _Parts:
    """Parts that backward joins again, once for all readers of the joined tensor."""

    parts: Sequence[torch.Tensor]
    dim: int
    outer: int
    again: torch.Tensor | None = None

    @classmethod
    def of(cls, parts: Sequence[torch.Tensor], dim: int, outer: int) -> "_Parts":
        """The parts, without the operators that made them."""
        return cls([p.detach() for p in parts], dim, outer)

    def noted(self) -> torch.Tensor:
        """The parts joined; autograd keeps the parts in its place."""
        y = joined(self.parts, self.dim, self.outer)
        note_source(y, self)
        return y

    def made_again(self) -> torch.Tensor:
        if self.again is None:
            self.again = joined(self.parts, self.dim, self.outer)
        return self.again


class _Extend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dim: int, outer: int, *parts: torch.Tensor) -> torch.Tensor:
        ctx.source = _Parts.of(parts, dim, outer)
        return ctx.source.noted()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        source = ctx.source
        source.again = None  # the backward of its readers has run
        lengths = parts_of([p.shape[source.dim] // source.outer for p in source.parts])
        wanted = enumerate(ctx.needs_input_grad[2:])
        own = (take(gradient, source.dim, source.outer, lengths, n) if learns else None for n, learns in wanted)
        return None, None, *own


def extend(earlier: Sequence[torch.Tensor], x: torch.Tensor, dim: int, outer: int = 1) -> torch.Tensor:
    """Appends a part to those before it: axis `dim` is (outer, positions)."""
    if not earlier:
        return x
    parts = *earlier, x
    if not torch.is_grad_enabled():
        return joined(parts, dim, outer)
    if any(p.requires_grad for p in parts):
        return _Extend.apply(dim, outer, *parts)  # type: ignore[no-any-return, no-untyped-call]
    return _Parts.of(parts, dim, outer).noted()
