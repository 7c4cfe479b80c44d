"""Distributions and dropout: parts are slices of the whole, and moments are what they should be."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from ssdsl.runtime.bits import GENERATORS, Generator, step_keys
from ssdsl.runtime.random import attention_dropout, dropout, integers, keep, normal, uniform

KEY = step_keys(torch.tensor([3, 4]), 2)[1]
SIZES = [128, 1000]
WHOLE = [torch.arange(n) for n in SIZES]
PART = [torch.tensor([5, 6, 100]), torch.arange(333, 700)]
DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": uniform,
    "uniform bf16": partial(uniform, dtype=torch.bfloat16),
    "uniform f64": partial(uniform, dtype=torch.float64),
    "normal": normal,
    "normal f64": partial(normal, dtype=torch.float64),
    "integers": partial(integers, -3, 7),
    "integers long": partial(integers, 0, 1 << 60),
    "keep": partial(keep, 0.25),
}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("name", DRAWS)
def test_a_part_is_a_slice(name: str, generator: Generator) -> None:
    draw = DRAWS[name]
    whole = draw(KEY, WHOLE, SIZES, generator)
    assert torch.equal(draw(KEY, PART, SIZES, generator), whole[PART[0]][:, PART[1]])


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_moments(generator: Generator, dtype: torch.dtype) -> None:
    count = math.prod(SIZES)
    flat = uniform(KEY, WHOLE, SIZES, generator, dtype).double()
    assert flat.min() >= 0 and flat.max() < 1
    assert abs(flat.mean() - 0.5) < 5 / math.sqrt(12 * count) + torch.finfo(dtype).eps / 2
    bell = normal(KEY, WHOLE, SIZES, generator, dtype).double()
    for power, (mean, deviation) in enumerate([(0, 1), (1, math.sqrt(2)), (0, math.sqrt(15)), (3, math.sqrt(96))], 1):
        assert abs((bell**power).mean() - mean) < 5 * deviation / math.sqrt(count) + 3 * torch.finfo(dtype).eps


@pytest.mark.parametrize("generator", GENERATORS)
def test_integers_are_all_equally_frequent(generator: Generator) -> None:
    counts = torch.bincount(integers(-3, 7, KEY, WHOLE, SIZES, generator).flatten() + 3)
    expected = math.prod(SIZES) / 10
    assert counts.shape == (10,) and (counts - expected).abs().max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("chance", [0.0, 1e-3, 0.5, 0.9, 1.0])
def test_the_chance_of_a_mask(generator: Generator, chance: float) -> None:
    count = math.prod(SIZES)
    kept = int(keep(chance, KEY, WHOLE, SIZES, generator).sum())
    assert abs(kept - chance * count) <= 5 * math.sqrt(count * chance * (1 - chance))


@pytest.mark.parametrize("p", [0.1, 1.0])
def test_dropout_and_its_gradient(p: float) -> None:
    x = torch.randn(SIZES, requires_grad=True)
    saved: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.dtype), t)[1], lambda t: t):
        y = dropout(x, p, KEY, WHOLE, SIZES, "hash")
    factor = keep(1 - p, KEY, WHOLE, SIZES, "hash") * (1 / (1 - p) if p < 1 else 1.0)
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
