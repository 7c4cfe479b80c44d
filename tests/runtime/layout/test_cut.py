"""Cutting and joining tensors: each is the other's inverse, and groups are in the order of the coordinates."""

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.ir.layout import Shape, Shard, cut
from ssdsl.plan.regions import Digit, nests
from ssdsl.runtime.layout.cut import joined, merge_blocks, split_blocks, take, take_sizes
from ssdsl.runtime.layout.mesh import RankMesh


@st.composite
def cuts(draw) -> tuple[torch.Tensor, int, int, int]:
    """A tensor with an axis `dim` that is (outer, count, rest)."""
    outer, count, rest = (draw(st.integers(1, 4)) for _ in range(3))
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    dim = draw(st.integers(0, len(shape)))
    shape.insert(dim, outer * count * rest)
    return torch.arange(math.prod(shape)).reshape(shape), dim, outer, count


@given(cuts())
def test_merge_blocks_undoes_split_blocks(where) -> None:
    x, dim, outer, count = where
    parts = split_blocks(x, dim, outer, count)
    assert parts.is_contiguous() and len(parts) == count
    assert torch.equal(merge_blocks(parts, dim, outer), x)


@given(cuts())
def test_take_is_one_of_the_parts(where) -> None:
    x, dim, outer, count = where
    for index, part in enumerate(split_blocks(x, dim, outer, count)):
        assert torch.equal(take(x, dim, outer, count, index), part)


@given(cuts(), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_join_undoes_take_sizes(where, sizes: list[int]) -> None:
    x, dim, outer, _ = where
    x = x.narrow(dim, 0, outer).repeat_interleave(sum(sizes), dim)
    parts = [take_sizes(x, dim, outer, sizes, index) for index in range(len(sizes))]
    assert [p.shape[dim] for p in parts] == [outer * n for n in sizes]
    assert torch.equal(joined(parts, dim, outer), x)


@given(cuts())
def test_equal_sizes_are_takes(where) -> None:
    x, dim, outer, count = where
    rest = x.shape[dim] // (outer * count)
    for index in range(count):
        assert torch.equal(take_sizes(x, dim, outer, (rest,) * count, index), take(x, dim, outer, count, index))


@st.composite
def nested(draw) -> tuple[Shape, tuple[Shard, ...]]:
    """A fused axis and digits of its factors that can be carried at once, in any order."""
    shape = Shape(((draw(st.integers(1, 3)), draw(st.sampled_from([4, 8, 12, 24])), draw(st.integers(1, 3))), (2,)))
    chosen: tuple[Digit, ...] = ()
    for _ in range(draw(st.integers(1, 3))):
        size = shape.factors[1]
        free = [
            d
            for count in (2, 3, 4)
            for stride in range(1, size // count + 1)
            if nests((*chosen, d := Digit(count, stride)), size)
        ]
        if free:
            chosen = (*chosen, draw(st.sampled_from(free)))
    return shape, tuple(Shard(1, digit) for digit in draw(st.permutations(chosen)))


@given(nested(), st.randoms())
def test_cuts_in_any_order_lead_to_the_same_part(where, draw) -> None:
    """`cut` says where a digit lies once others are cut out: taking all leaves the positions that have their values."""
    shape, shards = where
    digits = [shard.digit for shard in shards]
    values = [draw.randrange(d.parts) for d in digits]
    x = torch.arange(shape.numel).reshape(shape.sizes)
    for at, (shard, value) in enumerate(zip(shards, values, strict=True)):
        place = cut(shape, shard, shards[:at])
        x = take(x, place.dim, place.outer, place.count, value)
    at = torch.arange(shape.factors[1])
    for digit, value in zip(digits, values, strict=True):
        at = at[at // digit.stride % digit.parts == value]
    whole = torch.arange(shape.numel).reshape(shape.factors)
    assert torch.equal(x, whole[:, at].reshape(x.shape))


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([2, 3, 4])), min_size=1, max_size=3))
def test_digits_nest_if_each_combination_of_values_has_as_many_positions(numbers: list[tuple[int, int]]) -> None:
    size = 24
    digits = tuple(Digit(count, stride) for stride, count in numbers)
    if not nests(digits, size):
        return
    found = [tuple(p // d.stride % d.parts for d in digits) for p in range(size)]
    combinations = list(itertools.product(*(range(d.parts) for d in digits)))
    assert {found.count(c) for c in combinations} == {size // len(combinations)}


def test_digits_that_overlap_do_not_nest() -> None:
    assert nests((Digit(2, 8), Digit(2, 4), Digit(4)), 16)
    assert nests((Digit(2), Digit(2, 8)), 16)
    for overlapping in [Digit(2, 8), Digit(4, 4), Digit(8, 2)]:
        assert not nests((Digit(2, 8), overlapping), 16)
    assert not nests((Digit(3, 8),), 16)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 9))
def test_ranks_and_coordinates(sizes: list[int], first: int) -> None:
    """Along each axis, ranks in the order of a group (ascending) are in the order of their coordinates."""
    mesh = RankMesh("gpus", dict(zip("abcd", sizes, strict=False)), first)
    for rank in range(first, first + mesh.size):
        at = mesh.coordinates(rank)
        assert at is not None and mesh.rank(at) == rank
    assert mesh.coordinates(first - 1) is None and mesh.coordinates(first + mesh.size) is None
    for axis in mesh.axes:
        for line in mesh.lines((axis,)):
            places = [mesh.coordinates(rank) for rank in line]
            assert [p[axis] for p in places if p] == list(range(mesh.axes[axis]))
            assert all({**p, axis: 0} == {**places[0], axis: 0} for p in places)
    for axes in itertools.combinations(mesh.axes, 2):
        assert sorted(itertools.chain(*mesh.lines(axes))) == list(range(first, first + mesh.size))
