"""What torch draws under `Draws`: by the number of a draw in its step, whatever ran or did not run before."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ssdsl.runtime.random.counter_rng import step_keys
from ssdsl.runtime.random.distributions import DISTRIBUTIONS
from ssdsl.runtime.random.single_device import FIRST_KEYS, CannotDraw, Draws

SEED, STEP = 3, 4


def expected(number: int, count: int = 8) -> torch.Tensor:
    """What `torch.rand` gives as the draw of this number."""
    key = step_keys(torch.tensor([SEED, STEP]), number + 1)[number]
    return DISTRIBUTIONS["uniform"](0.0, 1.0, key, [torch.arange(count)], [count], "hash", torch.float32)


def test_draws_are_numbered_as_they_run() -> None:
    with Draws(SEED, STEP):
        for number in range(2 * FIRST_KEYS + 2):
            torch.testing.assert_close(torch.rand(8), expected(number), rtol=0, atol=0)


@pytest.mark.parametrize("skipped", [1, FIRST_KEYS - 1, FIRST_KEYS, 2 * FIRST_KEYS, 9 * FIRST_KEYS])
def test_draws_behind_many_that_are_not_run(skipped: int) -> None:
    """As of a model of which a rank initialises the last layers alone."""
    with Draws(SEED, STEP) as draws:
        for _ in range(skipped):
            draws.skip(torch.ops.aten.rand.default)
            draws.skip(torch.ops.aten.add.Tensor)
        torch.testing.assert_close(torch.rand(8), expected(skipped), rtol=0, atol=0)
        torch.testing.assert_close(torch.rand(8), expected(skipped + 1), rtol=0, atol=0)


def test_a_layer_that_does_not_drop_counts_no_draw() -> None:
    with Draws(SEED, STEP):
        F.dropout(torch.ones(8), 0.5, training=False)
        F.dropout(torch.ones(8), 0.0)
        torch.testing.assert_close(torch.rand(8), expected(0), rtol=0, atol=0)


def test_a_checkpoint_draws_again_what_it_drew() -> None:
    x = torch.ones(64, requires_grad=True)

    def run(given: torch.Tensor) -> torch.Tensor:
        return F.dropout(given, 0.5) * given

    with Draws(SEED, STEP) as draws:
        y = checkpoint(run, x, use_reentrant=False)
        y.sum().backward()
        assert draws.count == 1
        torch.testing.assert_close(torch.rand(8), expected(1), rtol=0, atol=0)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * y.detach())


@pytest.mark.parametrize("chances", [[0.5, 1.5], [-0.1, 0.5]])
def test_chances_that_are_none(chances: list[float]) -> None:
    with Draws(SEED, STEP), pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.bernoulli(torch.tensor(chances))


def test_of_nothing_there_is_nothing() -> None:
    with Draws(SEED, STEP):
        assert torch.rand(0, 3).shape == (0, 3)
        assert F.dropout(torch.ones(0), 0.5).shape == (0,)
        assert not F.dropout(torch.ones(8), 1.0).any()


def test_complex_numbers_deviate_as_those_of_torch() -> None:
    with Draws(SEED, STEP):
        normal, uniform = (draw(1 << 14, dtype=torch.complex64) for draw in (torch.randn, torch.rand))
        moved = torch.empty(1 << 14, dtype=torch.complex64).normal_(1.0, 3.0)
    for got, mean, deviation in ((normal, 0, 1), (uniform, 0.5 + 0.5j, math.sqrt(1 / 6)), (moved, 1, 3)):
        assert abs(got.mean().item() - mean) < 0.05 * deviation
        assert got.std().item() == pytest.approx(deviation, rel=0.02)


def test_numbers_that_are_no_function_of_positions() -> None:
    with Draws(SEED, STEP), pytest.raises(CannotDraw):
        torch.poisson(torch.ones(8))
