"""Linear recurrences, whole and in parts of unequal sizes, against a loop of torch's operators."""

from collections.abc import Sequence

import pytest
import torch

from ssdsl import runtime
from ssdsl.runtime.ranks.world import Group
from tests.runtime.kernels.test_softmax_and_max import SIZE, parts, together

Tensor = torch.Tensor
DECAYS = {"each": (SIZE, 2, 3), "heads": (SIZE, 2, 1), "constant": (2, 1), "number": ()}


def loop(decay: Tensor, update: Tensor, initial: Tensor | None, dim: int, before: bool) -> Tensor:
    decays = decay.expand_as(update)
    state = torch.zeros_like(update.select(dim, 0)) if initial is None else initial
    states = []
    for t in range(update.shape[dim]):
        after = decays.select(dim, t) * state + update.select(dim, t)
        states.append(state.expand_as(after) if before else after)
        state = after
    return torch.stack(states, dim)


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("initial", [None, (2, 3), (3,)])
@pytest.mark.parametrize("shape", DECAYS.values(), ids=DECAYS)
def test_parts_are_those_of_the_loop(shape: Sequence[int], initial: Sequence[int] | None, before: bool) -> None:
    decay, update = numbers(*shape), numbers(SIZE, 2, 3)
    start = [] if initial is None else [numbers(*initial)]
    given = [decay, update, *start]
    expected = loop(decay, update, start[0] if start else None, 0, before)
    assert torch.equal(runtime.linear_scan(decay, update, start[0] if start else None, 0, before), expected)
    upstream = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view(expected.shape)
    gradients = torch.autograd.grad(expected, given, upstream)
    cut = len(shape) == 3

    def one(at: int, group: Group) -> tuple[Tensor, ...]:
        mine = [parts(decay, 0)[at] if cut else decay, parts(update, 0)[at], *start]
        result = runtime.linear_scan_parts(*mine[:2], start[0] if start else None, 0, before, at, group)
        return result.detach(), *torch.autograd.grad(result, mine, parts(upstream, 0)[at])

    results, of_decay, of_update, *of_start = zip(*together(one), strict=True)
    joined = [torch.cat(of_decay) if cut else sum(of_decay), torch.cat(of_update), *map(sum, of_start)]
    assert torch.allclose(torch.cat(results), expected)
    for found, wanted in zip(joined, gradients, strict=True):
        assert torch.allclose(found, wanted)  # type: ignore[arg-type]


def test_another_axis_and_complex_numbers() -> None:
    decay, update = (torch.polar(numbers(2, SIZE), numbers(2, SIZE)).detach().requires_grad_() for _ in range(2))
    expected, found = (f(decay, update, None, 1, False) for f in (loop, runtime.linear_scan))
    assert torch.equal(expected, found)
    upstream = torch.polar(numbers(2, SIZE), 2 * numbers(2, SIZE)).detach()
    for a, b in zip(*(torch.autograd.grad(y, (decay, update), upstream) for y in (expected, found)), strict=True):
        assert torch.allclose(a, b)
