"""Computes which positions resampling reads, and with which weights.

`size` positions become `results`; `factor` is the scale if the call gives one, else None. Let scale be size / results
or 1 / factor. Then result k of nearest resampling is position floor(k * scale). In linear resampling result k lies at
place (k + 1/2) * scale - 1/2 of the input, or with aligned corners at k * (size - 1) / (results - 1). For 2 positions
and 4 results the places are -1/4, 1/4, 3/4 and 5/4.

Weights are rounded as in torch: to single precision after each operation, or exact for activations in double precision.
The two positions around a result are computed exactly, because torch's own answer depends on how the machine multiplies
and adds.
"""

import ctypes
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


class Between(NamedTuple):
    """A result between two positions: (1 - weight) of the first plus `weight` of the second."""

    first: int
    second: int
    weight: float


@lru_cache(maxsize=1024)
def nearest(size: int, results: int, factor: float | None) -> tuple[int, ...]:
    """The position that each result copies.

    >>> nearest(4, 6, None)
    (0, 0, 1, 2, 2, 3)
    """
    scale = _scale(size, results, factor)
    return tuple(min(int(_single(k * scale)), size - 1) for k in range(results))


def is_even(size: int, results: int, factor: float | None) -> bool:
    """Whether each position is copied equally often."""
    times = results // size
    return results == times * size and nearest(size, results, factor) == tuple(k // times for k in range(results))


@lru_cache(maxsize=1024)
def linear(
    size: int, results: int, align_corners: bool, factor: float | None, *, is_double: bool = False
) -> tuple[Between, ...]:
    """The two positions around each result; the same one twice if it has all the weight.

    >>> linear(2, 4, False, 2.0)[:2]
    (Between(first=0, second=0, weight=0.0), Between(first=0, second=1, weight=0.25))
    """
    if size == results:
        return tuple(Between(k, k, 0.0) for k in range(size))
    if align_corners:
        exact, shift = Fraction(size - 1, max(1, results - 1)), Fraction(0)
        scale = _single((size - 1) / (results - 1)) if results > 1 else 0.0
    else:
        exact = 1 / Fraction(factor) if factor is not None and factor > 0 else Fraction(size, results)
        scale, shift = _scale(size, results, factor), Fraction(1, 2)
    half = float(shift)
    places = ((exact * (k + shift) - shift, _single(_single((k + half) * scale) - half)) for k in range(results))
    return tuple(_between(place, None if is_double else rounded, size) for place, rounded in places)


def _between(place: Fraction, rounded: float | None, size: int) -> Between:
    """The positions around a place, which may lie outside of the input. If the `rounded` place is given, the weight is
    computed from it."""
    first = min(max(int(place), 0), size - 1)
    if first == size - 1 or place <= first:
        return Between(first, first, 0.0)
    weight = float(place - first) if rounded is None else _single(rounded - first)
    return Between(first, first + 1, min(max(weight, 0.0), 1.0))


def _scale(size: int, results: int, factor: float | None) -> float:
    """The distance of two results, in positions, in single precision."""
    return _single(1 / factor) if factor is not None and factor > 0 else _single(size / results)


def _single(x: float) -> float:
    """Rounds to single precision, as one operation on single-precision numbers does."""
    return ctypes.c_float(x).value
