"""Windows: which positions of an input a run of results needs.

Positions are those of the whole dimension; runs are (start, end), half open, and clipped to the input.
"""

from dataclasses import dataclass
from typing import Protocol


class Window(Protocol):
    """What an operator needs of a windowed dimension."""

    def needs(self, start: int, end: int) -> tuple[int, int]:
        """The run of the input that the results start..end need."""
        ...


@dataclass(frozen=True, slots=True)
class Sliding:
    """Convolution and pooling: result k reads `span` positions from k * stride - before. `size` is the input's.

    >>> Sliding(13, stride=2, before=3, span=7).needs(0, 4)     # ResNet's first layer, 7/2/3
    (0, 10)
    """

    size: int
    stride: int
    before: int
    span: int

    def needs(self, start: int, end: int) -> tuple[int, int]:
        low, high = start * self.stride - self.before, (end - 1) * self.stride - self.before + self.span
        first = min(max(low, 0), self.size)
        return first, max(min(high, self.size), first)
