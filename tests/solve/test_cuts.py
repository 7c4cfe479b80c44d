"""The cut of layers into stages against the enumeration of all of them."""

import math
import random
from itertools import combinations, product
from time import process_time

import pytest

from ssdsl.solve.cuts import DeviceKind, LayerRow, cut


def step(row: LayerRow, starts: tuple[int, ...], kinds: tuple[int, ...]) -> float:
    """The seconds of a cut by the formula; infinite where it does not fit."""
    if sum(row.kinds[k].devices for k in kinds) != row.devices:
        return math.inf
    times, used = [], 0
    for s, (start, end, k) in enumerate(zip(starts, (*starts[1:], row.layers), kinds, strict=True)):
        kind = row.kinds[k]
        if kind.behind is not None and used not in kind.behind:
            return math.inf
        used += kind.devices
        times.append(sum(kind.seconds[start:end]))
        if sum(kind.state[start:end]) + row.in_flight[s] * sum(kind.kept[start:end]) > kind.memory_bytes * (1 + 1e-9):
            return math.inf
    m, longest = row.micro_batches, 0.0
    for s, (start, end, k) in enumerate(zip(starts, (*starts[1:], row.layers), kinds, strict=True)):
        hides = 0.0 if row.in_flight[s] >= m else (row.in_flight[s] - 1) * sum(row.kinds[k].forward[start:end])
        longest = max(longest, sum(times[:s]) + m * times[s] + max(0.0, sum(times[s + 1 :]) - hides))
    return longest


def enumerated(row: LayerRow) -> float:
    inner = combinations(range(1, row.layers), len(row.stages) - 1)
    return min((step(row, (0, *s), k) for s, k in product(inner, product(*row.stages))), default=math.inf)


def made_up(seed: int) -> LayerRow:
    rng = random.Random(seed)
    layers, stages = rng.randint(2, 8), rng.randint(1, 4)
    whole = [rng.choice([1, 1, 1, 2, 5]) * rng.uniform(1, 1.1) for _ in range(layers)]
    sizes = rng.choice([[1], [1, 2], [1, 2, 4], [1, 1]])
    kinds = tuple(
        DeviceKind(
            n,
            tuple(t / n ** rng.uniform(0.6, 1) for t in whole),
            tuple(t / n * rng.uniform(0.2, 0.4) for t in whole),
            tuple(rng.uniform(0, 2) / n for _ in whole),
            tuple(rng.uniform(0, 1) / n for _ in whole),
            rng.choice([math.inf, 8.0, 4.0]),
            rng.choice([None, None, frozenset(range(0, 16, n)), frozenset(rng.sample(range(6), 3))]),
        )
        for n in sizes
    )
    numbers = tuple(range(len(kinds)))
    slots = tuple(numbers if rng.random() < 0.7 else (rng.choice(numbers),) for _ in range(stages))
    flight = tuple(rng.choice([1, 1, 2, 64]) * (stages - s) for s in range(stages))
    return LayerRow(kinds, slots, flight, rng.randint(stages, stages * max(sizes)), rng.choice([1, 2, 8, 64]))


def test_it_is_the_best_of_all() -> None:
    solved = 0
    for seed in range(400):
        row = made_up(seed)
        truth, found = enumerated(row), cut(row)
        assert (found is None) == (truth == math.inf), seed
        if found is not None:
            assert found.step_s == pytest.approx(truth, rel=1e-9), seed
            assert step(row, found.starts, found.kinds) == pytest.approx(found.step_s, rel=1e-9), seed
            solved += 1
    assert solved > 100


def test_96_layers_in_64_stages_take_a_second() -> None:
    rng = random.Random(0)
    seconds = tuple(rng.uniform(1, 1.3) for _ in range(96))
    kind = DeviceKind(1, seconds, tuple(t / 3 for t in seconds), (1.0,) * 96, (0.1,) * 96)
    began = process_time()
    found = cut(LayerRow((kind,), ((0,),) * 64, tuple(range(64, 0, -1)), 64, 256))
    assert found is not None and process_time() - began < 3  # on a busy machine
    assert max(sum(seconds[a:b]) for a, b in zip(found.starts, (*found.starts[1:], 96), strict=True)) < 2.7
