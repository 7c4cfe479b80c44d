"""Slices of a sequence: as good as an enumeration, and never worse than equal ones."""

from collections.abc import Iterator
from random import Random

import pytest

from ssdsl.solve.slices import slices, step_of


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """The ways to write a number as a sum of positive ones, in order."""
    if not total:
        yield ()
    for first in range(1, total + 1):
        yield from ((first, *rest) for rest in compositions(total - first))


@pytest.mark.parametrize("seed", range(60))
def test_they_are_the_best_of_all(seed: int) -> None:
    draw = Random(seed)
    places, grid = draw.randint(1, 9), draw.choice([1, 8])
    stages, sequences = draw.choice([1, 2, 8, 48]), draw.choice([1, 3])
    if draw.random() < 0.5:
        table = {(a, b): draw.uniform(0.1, 9) for b in range(places * grid + 1) for a in range(b)}
    else:
        fixed, each, seen = draw.uniform(0, 5), draw.uniform(0.1, 1), draw.uniform(0, 0.1)
        span = range(places * grid + 1)
        table = {(a, b): fixed + each * (b - a) + seen * (b - a) * (a + b) / 2 for b in span for a in span if a < b}

    def time(length: int, before: int) -> float:
        return table[before, before + length]

    found = slices(time, places * grid, grid, stages, sequences)
    assert sum(found) == places * grid and all(n % grid == 0 for n in found)
    every = ([grid * n for n in lengths] for lengths in compositions(places))
    least = min(step_of(time, lengths, stages, sequences) for lengths in every)
    assert step_of(time, found, stages, sequences) == pytest.approx(least)


def test_the_pipeline_of_the_paper() -> None:
    """GPT-3 44B on 48 stages of 8 GPUs: products of at least 256 tokens, and 40 us for their launches."""
    hidden, width = 6144, 8

    def time(length: int, before: int) -> float:
        flops = 24 * max(length, 256) * hidden**2 + 20 * 4 * length * (before + length / 2) * hidden
        return 40e-6 + flops / (width * 80e12)

    found = slices(time, 2048, 8, 48)
    equal = min(step_of(time, [2048 // n] * n, 48) for n in (1, 2, 4, 8, 16, 32))
    assert step_of(time, found, 48) <= equal / 1.12  # as in the paper
    assert list(found) == sorted(found, reverse=True) and len({*found}) > 1, "late slices see more keys"
