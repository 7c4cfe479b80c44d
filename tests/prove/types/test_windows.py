"""What parts need, by the rows' formulas, is what the definitions of the operators say, position by position."""

import itertools
import random

import pytest

from ssdsl.ir.function import Split
from ssdsl.ir.value import Axis
from ssdsl.plan.regions import parts_of as regions_of_sizes
from ssdsl.prove.types.windows import PARTS, part_function, parts_of
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
            split = Split(Axis("h"), dim.window.of, 1, len(sizes), regions_of_sizes(sizes))
            for (run,), need in parts_of(operator, split, number):
                assert dim.window.shape.needs(*run) == need, (call.call, number, run)


def partition(size: int, draw: random.Random) -> tuple[int, ...]:
    ends = [0, *sorted(draw.sample(range(1, size), draw.randint(0, size - 1))), size]
    return tuple(b - a for a, b in itertools.pairwise(ends))
