"""Windows: the positions of an input that a run of results needs.

Positions are those of the whole dimension; runs are (start, end), half open, and clipped to the input. Each is the
shortest that suffices; (0, 0) where only padding is read.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from ssdsl.record import Record
from ssdsl.runtime.kernels import resampling_weights
from ssdsl.runtime.layout.regions import reach

Run = tuple[int, int]


class Window(Protocol):
    """The positions that an operator needs of a windowed dimension."""

    def needs(self, start: int, end: int) -> Run:
        """The run of the input that the results start..end need."""
        ...


class Taps(Record):
    """`taps` places for each k, `step` apart: k * stride - before + tap * step. `size` is the size of the input."""

    size: int
    stride: int
    before: int
    taps: int
    step: int = 1

    def pairs(self, counted: Run, places: Run) -> Iterator[tuple[int, int]]:
        """Yields (k, place) for the first and the last k of `counted` whose place is in `places`, tap by tap.

        >>> list(Taps(5, stride=2, before=1, taps=1).pairs((0, 3), (0, 5)))     # places -1, 1, 3: the first is outside
        [(1, 1), (2, 3)]
        """
        for offset in (tap * self.step - self.before for tap in range(self.taps)):
            low = max(counted[0], -((offset - places[0]) // self.stride))  # -(a // b) rounds -a / b up
            high = min(counted[1] - 1, (places[1] - 1 - offset) // self.stride)
            if low <= high:
                yield from ((k, k * self.stride + offset) for k in (low, high))


class Sliding(Taps):
    """Convolution and pooling: result k reads the places.

    >>> Sliding(13, stride=2, before=3, taps=7).needs(0, 4)     # ResNet's first layer, 7/2/3
    (0, 10)
    """

    def needs(self, start: int, end: int) -> Run:
        return hull(place for _, place in self.pairs((start, end), (0, self.size)))  # others are padding


class Spread(Taps):
    """Transposed convolution: input k is added to the places, which are results.

    >>> Spread(4, stride=2, before=1, taps=3).needs(0, 4)       # 4 become 7: results -1..1, 1..3, 3..5, 5..7
    (0, 3)
    """

    def needs(self, start: int, end: int) -> Run:
        return hull(k for k, _ in self.pairs((0, self.size), (start, end)))


class Moved(Record):
    """Padding, slices and joined tensors: result k is the position k * step - before, or none of this input.

    >>> Moved(13, before=2).needs(0, 8)     # two places in front, which are padding
    (0, 6)
    """

    size: int
    before: int = 0
    step: int = 1

    def needs(self, start: int, end: int) -> Run:
        return Sliding(self.size, self.step, self.before, taps=1).needs(start, end)


class Rolled(Record):
    """Rolling: result k is the position k - shift, counted around.

    >>> Rolled(13, shift=2).runs(0, 8), Rolled(13, shift=2).needs(0, 8)
    (((0, 6), (11, 13)), (0, 13))
    """

    size: int
    shift: int

    def runs(self, start: int, end: int) -> tuple[Run, ...]:
        """The positions that the results start..end are: two runs, where they go over the end."""
        first = (start - self.shift) % self.size
        last = first + end - start
        if last <= self.size:
            return ((first, last),)
        return ((0, self.size),) if end - start == self.size else ((0, last - self.size), (first, self.size))

    def needs(self, start: int, end: int) -> Run:
        return around(self.runs(start, end))


class Band(Record):
    """The positions around the results' own: the keys that queries see, of which query i has its own at position i.

    >>> Band(13, before=2, after=1).needs(5, 9)
    (3, 10)
    >>> Band.prefix(13).needs(5, 9)     # causal attention: all keys up to a query's own
    (0, 9)
    """

    size: int
    before: int
    after: int

    @classmethod
    def prefix(cls, size: int) -> "Band":
        """All positions up to the results' own."""
        return cls(size, size, 0)

    @property
    def is_prefix(self) -> bool:
        """Whether results need all positions in front of them, and none behind."""
        return self.before >= self.size - 1 and not self.after

    def pairs(self, runs: Iterable[Run]) -> int:
        """The pairs of a result in these runs and a position that it needs.

        >>> Band(4, before=1, after=0).pairs([(0, 4)])     # 1 + 2 + 2 + 2
        7
        """
        return sum((end - start) * self.size - self._left_out(start, end) for start, end in runs)

    def _left_out(self, start: int, end: int) -> int:
        """The pairs of a result of a run and a position in front of what it needs, or behind it."""
        ends = (end - self.before, start - self.before, self.size - start - self.after, self.size - end - self.after)
        front, no_front, behind, no_behind = (n * (n - 1) // 2 if n > 0 else 0 for n in ends)
        return front - no_front + behind - no_behind

    def runs(self, results: Iterable[Run]) -> tuple[Run, ...]:
        """The positions around runs of results."""
        return reach(tuple(results), self.size, self.before, self.after)

    def needs(self, start: int, end: int) -> Run:
        return around(self.runs([(start, end)]))


def hull(positions: Iterable[int]) -> Run:
    """The shortest run that has all these positions."""
    found = [*positions]
    return (min(found), max(found) + 1) if found else (0, 0)


def around(runs: Iterable[Run]) -> Run:
    """The shortest run that has all these runs."""
    found = [run for run in runs if run[0] < run[1]]
    return (min(start for start, _ in found), max(end for _, end in found)) if found else (0, 0)


def in_time(window: Window) -> Window:
    """The window of parts that run one after another: one that reads nothing behind its results is given all that lies
    in front of them, because earlier tasks keep whole parts."""
    return Band.prefix(window.size) if isinstance(window, Band) and not window.after else window


def needed(window: Window, results: Iterable[Run]) -> tuple[Run, ...]:
    """The runs that results need: one, except of a rolled axis, and of keys around several runs of queries."""
    match [*results]:
        case [(start, end)] if isinstance(window, Rolled):
            return window.runs(start, end)
        case runs if isinstance(window, Band):
            return window.runs(runs)
        case runs:
            return (around(window.needs(*run) for run in runs),)


# -- upsampling, by the functions of the runtime that programs call ----------------------------------------------------


class Nearest(Record):
    """Upsampling that copies the nearest position; `factor` is the scale that the call gives.

    >>> Nearest(4, 8, 2.0).needs(3, 8)
    (1, 4)
    """

    size: int
    results: int
    factor: float | None = None

    @property
    def is_even(self) -> bool:
        """Whether each position is copied equally often."""
        return resampling_weights.is_even(self.size, self.results, self.factor)

    def needs(self, start: int, end: int) -> Run:
        return hull(resampling_weights.nearest(self.size, self.results, self.factor)[start:end])


class Linear(Record):
    """Linear upsampling along one axis; bilinear and trilinear are one for each axis.

    >>> Linear(4, 8, align_corners=False, factor=2.0).needs(4, 8)       # result 4 lies between 1 and 2
    (1, 4)
    """

    size: int
    results: int
    align_corners: bool
    factor: float | None = None

    def needs(self, start: int, end: int) -> Run:
        places = resampling_weights.linear(self.size, self.results, self.align_corners, self.factor)[start:end]
        return hull(p for place in places for p in (place.first, place.second))
