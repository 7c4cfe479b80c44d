"""A scatter plot in characters, with the Pareto front of its points."""

import math
from collections.abc import Sequence

from ssdsl.show.view import seconds, size

HEIGHT = 12  # lines


def scatter(
    points: Sequence[tuple[float, float]],
    named: Sequence[tuple[str, float, float]],
    width: int,
    times: str,
    sizes: str,
) -> str:
    """The plot: seconds across, bytes upwards, on logarithmic scales with the titles `times` and `sizes`; it is at most
    `width` columns wide. `o` is on the front, `.` is not; named points have their names. Empty for fewer than two
    points."""
    if len(points) < 2:
        return ""
    every = [*points, *((x, y) for _, x, y in named)]
    across = _Scale([x for x, _ in every], max(20, min(width, 100) - 12))
    upwards = _Scale([y for _, y in every], HEIGHT)
    rows = [[" "] * across.cells for _ in range(HEIGHT)]
    front = _front(points)
    marks = [*((".", *p) for p in points), *(("o", *p) for p in front), *named]
    for mark, x, y in marks:
        rows[HEIGHT - 1 - upwards.cell(y)][across.cell(x)] = mark
    labels = [size(round(upwards.high)), *[""] * (HEIGHT - 2), size(round(upwards.low))]
    lines = [f"{label:>10} |{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    low, high = seconds(across.low), seconds(across.high)
    axis = f"{'':>10} +{'-' * across.cells}"
    ends = f"{'':>12}{low}{high:>{across.cells - len(low)}}"
    return "\n".join([f"{'':>11}{sizes}", *lines, axis, ends, f"{'':>12}{times:^{across.cells}}".rstrip()])


class _Scale:
    """A logarithmic scale from the smallest to the largest of some values, in so many cells."""

    def __init__(self, values: Sequence[float], cells: int) -> None:
        self.low, self.high, self.cells = min(values), max(values), cells

    def cell(self, value: float) -> int:
        """The number of the cell that a value is in."""
        if self.high <= self.low or self.low <= 0:
            return 0
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(self.cells - 1, int(share * self.cells))


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point beats in both directions."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found
