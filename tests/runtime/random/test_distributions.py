"""Distributions and dropout: parts are slices of the whole, and moments are what they should be."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from ssdsl.runtime.random.counter_rng import GENERATORS, Generator, step_keys
from ssdsl.runtime.random.distributions import DISTRIBUTIONS, attention_dropout, dropout, keep

KEY = step_keys(torch.tensor([3, 4]), 2)[1]
SIZES = [128, 1000]
WHOLE = [torch.arange(n) for n in SIZES]
PART = [torch.tensor([5, 6, 100]), torch.arange(333, 700)]
CASES: dict[str, tuple[str, float, float, torch.dtype]] = {
    "uniform": ("uniform", 0, 1, torch.float32),
    "uniform of bf16": ("uniform", -1, 1, torch.bfloat16),
    "uniform of f64": ("uniform", 0, 1, torch.float64),
    "normal": ("normal", 1, 2, torch.float32),
    "normal of f64": ("normal", 0, 1, torch.float64),
    "log_normal": ("log_normal", 0, 1, torch.float32),
    "exponential": ("exponential", 2, 0, torch.float32),
    "geometric": ("geometric", 0.3, 0, torch.float32),
    "cauchy": ("cauchy", 0, 1, torch.float32),
    "integers": ("integers", -3, 7, torch.int64),
    "long integers": ("integers", 0, 1 << 50, torch.int64),
    "bernoulli": ("bernoulli", 0.25, 0, torch.bool),
}
COUNT = math.prod(SIZES)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("case", CASES)
def test_a_part_is_a_slice(case: str, generator: Generator) -> None:
    name, first, second, dtype = CASES[case]
    draw = DISTRIBUTIONS[name]
    whole = draw(first, second, KEY, WHOLE, SIZES, generator, dtype)
    assert whole.dtype is dtype
    part = draw(first, second, KEY, PART, SIZES, generator, dtype)
    torch.testing.assert_close(part, whole[PART[0]][:, PART[1]])


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_moments(generator: Generator, dtype: torch.dtype) -> None:
    flat = DISTRIBUTIONS["uniform"](0, 1, KEY, WHOLE, SIZES, generator, dtype).double()
    assert flat.min() >= 0 and flat.max() < 1
    assert abs(flat.mean() - 0.5) < 5 / math.sqrt(12 * COUNT) + torch.finfo(dtype).eps / 2
    bell = DISTRIBUTIONS["normal"](0, 1, KEY, WHOLE, SIZES, generator, dtype).double()
    for power, (mean, deviation) in enumerate([(0, 1), (1, math.sqrt(2)), (0, math.sqrt(15)), (3, math.sqrt(96))], 1):
        assert abs((bell**power).mean() - mean) < 5 * deviation / math.sqrt(COUNT) + 3 * torch.finfo(dtype).eps


@pytest.mark.parametrize("generator", GENERATORS)
def test_how_often_numbers_are_small(generator: Generator) -> None:
    """The distribution functions, at a few numbers."""
    known: dict[str, tuple[float, float, Callable[[float], float]]] = {
        "exponential": (2, 0, lambda x: 1 - math.exp(-2 * x)),
        "cauchy": (0.5, 2, lambda x: 0.5 + math.atan((x - 0.5) / 2) / math.pi),
        "log_normal": (0, 1, lambda x: 0.5 + math.erf(math.log(x) / math.sqrt(2)) / 2),
        "geometric": (0.3, 0, lambda x: 1 - 0.7 ** math.floor(x)),
    }
    for name, (first, second, below) in known.items():
        drawn = DISTRIBUTIONS[name](first, second, KEY, WHOLE, SIZES, generator, torch.float32)
        for x in (0.1, 0.7, 1.5, 3.5):
            chance = below(x)
            assert abs(int((drawn <= x).sum()) - chance * COUNT) <= 5 * math.sqrt(COUNT * chance * (1 - chance)), name


@pytest.mark.parametrize("generator", GENERATORS)
def test_integers_are_all_equally_frequent(generator: Generator) -> None:
    counts = torch.bincount(DISTRIBUTIONS["integers"](0, 10, KEY, WHOLE, SIZES, generator, torch.int64).flatten())
    assert counts.shape == (10,) and (counts - COUNT / 10).abs().max() < 5 * math.sqrt(COUNT / 10)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("chance", [0.0, 1e-3, 0.5, 0.9, 1.0])
def test_the_chance_of_a_mask(generator: Generator, chance: float) -> None:
    kept = int(keep(chance, KEY, WHOLE, SIZES, generator).sum())
    assert abs(kept - chance * COUNT) <= 5 * math.sqrt(COUNT * chance * (1 - chance))


@pytest.mark.parametrize("p", [0.1, 1.0])
def test_dropout_and_its_gradient(p: float) -> None:
    x = torch.randn(SIZES, requires_grad=True)
    saved: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.dtype), t)[1], lambda t: t):
        y = dropout(x, p, KEY, WHOLE, SIZES, "hash")
    factor = keep(1 - p, KEY, WHOLE, SIZES, "hash") * (1 / (1 - p) if p < 1 else 0.0)
    torch.testing.assert_close(y, x * factor)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, factor.float())
    assert saved == [torch.bool]


@pytest.mark.parametrize("case", ["plain", "causal", "bool", "float", "gqa"])
def test_attention_without_dropped_elements_is_torchs(case: str) -> None:
    query, keys, values = (
        torch.randn(2, n, 5, 8, dtype=torch.float64) for n in (4, *(2, 2) * (case == "gqa"), 4, 4)[:3]
    )
    mask = {"bool": torch.rand(5, 5) < 0.5, "float": torch.randn(5, 5, dtype=torch.float64)}.get(case)
    settings = (mask, 0.0, case == "causal", 0.3 if case == "float" else None, case == "gqa")
    index, sizes = [torch.arange(n) for n in (2, 4, 5, 5)], [2, 4, 5, 5]
    found = attention_dropout(query, keys, values, *settings, KEY, index, sizes, "hash")
    mask, p, causal, scale, gqa = settings
    expected = F.scaled_dot_product_attention(query, keys, values, mask, p, causal, scale=scale, enable_gqa=gqa)
    torch.testing.assert_close(found, expected)
