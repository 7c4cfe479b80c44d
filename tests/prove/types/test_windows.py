"""What parts need, by the rows' formulas, is what the definitions of the operators say, position by position."""

import itertools
import random

import pytest

from ssdsl.ir.function import Split
from ssdsl.ir.value import Axis, Time
from ssdsl.model.dims.window import needed
from ssdsl.plan.regions import Digit
from ssdsl.plan.regions import parts_of as parts_of_sizes
from ssdsl.prove.types.windows import PARTS, part_function, parts_of, windows_of
from tests.captured import graph_of
from tests.model.windowed import KINDS, drawn

CALLS = 60  # of each kind


@pytest.mark.parametrize("kind", KINDS)
def test_needs_are_what_is_read(kind: str) -> None:
    calls = [call for seed in range(CALLS) if (call := drawn(kind, seed)) is not None]
    assert len(calls) > CALLS // 4
    draw = random.Random(kind)
    for call in calls:
        operator = call.operator()
        assert part_function(operator) == PARTS[operator.kind.replace(f"{call.space}d", "")]
        for number, dim in enumerate(operator.dims):
            if dim.window is None:
                continue
            results = operator.dims[dim.window.of].size
            sizes = partition(results, draw)
            split = Split(Axis("h"), dim.window.of, Digit(len(sizes), at=parts_of_sizes(sizes)))
            for (run,), need in parts_of(operator, split, number):
                assert dim.window.shape.needs(*run) == need, (call.call, number, run)


def partition(size: int, draw: random.Random) -> tuple[int, ...]:
    ends = [0, *sorted(draw.sample(range(1, size), draw.randint(0, size - 1))), size]
    return tuple(b - a for a, b in itertools.pairwise(ends))


def test_keys_of_a_band_are_what_queries_see() -> None:
    """Of runs, of chunks from either end, and of slices in time: these are given all keys in front of them."""
    (attention,) = (
        o for o in graph_of("sequences.py:local").operators if o.module == "blocks.0" and "attention" in o.kind
    )
    (dim,) = (d for d in attention.dims if d.window is not None)
    assert dim.window is not None
    runs, chunks = parts_of_sizes((2, 1, 5, 5)), (((0, 3), (11, 13)), ((3, 5), (5, 11)))
    for at in (runs, chunks):
        split = Split(Axis("h"), dim.window.of, Digit(len(at), at=at))
        ((_, needs),) = windows_of(attention, split, (split,))
        for part, need in zip(at, needs, strict=True):
            seen = {k for run in part for q in range(*run) for k in range(q - 3, q + 1) if k >= 0}
            assert sorted(seen) == [k for run in need for k in range(*run)]
            assert needed(dim.window.shape, part) == need
    split = Split(Time("t"), dim.window.of, Digit(len(runs), at=runs))
    ((_, needs),) = windows_of(attention, split, (split,))
    assert needs == tuple(((0, end),) for ((_, end),) in runs)
