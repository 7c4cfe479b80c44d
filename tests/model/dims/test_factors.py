"""Factors: uniting refines both sides to their common refinement, and changes nothing where there is none."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.model.dims.factors import Factors

primes = st.lists(st.sampled_from([2, 2, 3, 5]), min_size=1, max_size=6)


def grouped(draw: st.DrawFn, sizes: list[int]) -> list[int]:
    """Products of neighbouring sizes, cut at random places."""
    result = [1]
    for size in sizes:
        if draw(st.booleans()):
            result.append(1)
        result[-1] *= size
    return result


@st.composite
def two_groupings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two ways to view an axis that a third, finer one makes compatible."""
    sizes = draw(primes)
    return grouped(draw, sizes), grouped(draw, sizes)


def suffixes(sizes: list[int]) -> set[int]:
    return {math.prod(sizes[i:]) for i in range(len(sizes) + 1)}


@settings(max_examples=200, deadline=None)
@given(two_groupings())
def test_uniting_gives_the_common_refinement(groupings: tuple[list[int], list[int]]) -> None:
    factors = Factors()
    a, b = ([factors.new(n) for n in sizes] for sizes in groupings)
    assert factors.unite(a, b)
    assert factors.leaves(a) == factors.leaves(b)
    refined = [factors.size(f) for f in factors.leaves(a)]
    assert suffixes(refined) == suffixes(groupings[0]) | suffixes(groupings[1])
    assert factors.unite(b, a) and [factors.size(f) for f in factors.leaves(b)] == refined


@settings(max_examples=200, deadline=None)
@given(two_groupings(), two_groupings())
def test_what_was_united_stays_united(first: tuple[list[int], list[int]], second: tuple[list[int], list[int]]) -> None:
    factors = Factors()
    a, b = ([factors.new(n) for n in sizes] for sizes in first)
    factors.unite(a, b)
    other = [factors.new(n) for n in second[0]]
    before = [factors.leaves(x) for x in (a, b, other)]
    united = factors.unite(b, other)
    assert factors.leaves(a) == factors.leaves(b)
    assert factors.leaves(other) == (factors.leaves(a) if united else before[2])
    assert united or [factors.leaves(x) for x in (a, b)] == before[:2]
    for x, sizes in ((a, first[0]), (b, first[1]), (other, second[0])):
        assert math.prod(factors.size(f) for f in factors.leaves(x)) == math.prod(sizes)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=4), st.lists(st.integers(1, 12), max_size=4))
def test_segments_are_the_shortest_runs_of_equal_size(a: list[int], b: list[int]) -> None:
    a, b = [*a, math.prod(b)], [*b, math.prod(a)]
    factors = Factors()
    left, right = ([factors.new(n) for n in sizes] for sizes in (a, b))
    found = factors.segments(left, right)
    assert [f for run, _ in found for f in run] == factors.leaves(left)
    assert [f for _, run in found for f in run] == factors.leaves(right)
    for x, y in found:
        sizes = [[factors.size(f) for f in run] for run in (x, y)]
        assert math.prod(sizes[0]) == math.prod(sizes[1])
        assert suffixes(sizes[0]) & suffixes(sizes[1]) == {1, math.prod(sizes[0])}


def test_a_later_refinement_reaches_what_was_united_before() -> None:
    factors = Factors()
    weight, activation = [factors.new(768)], [factors.new(768)]
    factors.unite(weight, activation)
    split = [factors.new(3), factors.new(256)]
    assert factors.unite(activation, split)
    view = [factors.new(4), factors.new(64)]
    assert factors.unite([split[1]], view)
    assert [factors.size(f) for f in factors.leaves(weight)] == [3, 4, 64]
    assert not factors.unite(weight, [factors.new(n) for n in (2, 384)]), "2 · 384 does not fit 3 · 4 · 64"
    assert [factors.size(f) for f in factors.leaves(weight)] == [3, 4, 64]


def test_factors_of_one_vanish() -> None:
    factors = Factors()
    axis = [factors.new(1), factors.new(6), factors.new(1)]
    assert [factors.size(f) for f in factors.leaves(axis)] == [6]
    assert factors.unite(axis, [factors.new(6)]) and factors.unite([factors.new(1)], [])


def test_an_axis_without_elements_is_the_same_as_another_one() -> None:
    factors = Factors()
    a, b, c = ([factors.new(n) for n in sizes] for sizes in ([4, 0], [4, 0], [0, 2, 2]))
    assert factors.unite(a, b) and factors.leaves(a) == factors.leaves(b)
    assert not factors.unite(a, c)
    assert len(factors.segments(a, c)) == 1
