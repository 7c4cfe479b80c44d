"""Backward in halves: the first gives the gradients of inputs alone and frees what only it needs."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F

from ssdsl.runtime.ranks.transport import Transport
from ssdsl.runtime.ranks.world import World, here
from ssdsl.runtime.step.split_backward import DeferredWgrad, checkpoint_halves, finish, halves
from ssdsl.runtime.step.split_backward import collecting as collecting_of


@pytest.fixture(autouse=True)
def rank() -> Iterator[None]:
    with World(Transport()).enter():
        yield


def collecting() -> AbstractContextManager[list[DeferredWgrad]]:
    return collecting_of(here())


def block(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    x = halves(lambda x, w: F.linear(x, w), (x,), (up,))
    x = F.gelu(x)
    x = halves(lambda x, w, s: F.linear(x, w) * s, (x,), (down, scale * 2))
    return x.sin()


def tensors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = (5, 4), (8, 4), (3, 8), (3,)
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def expected() -> list[torch.Tensor | None]:
    inputs = tensors()
    with collecting() as waiting:
        x, up, down, scale = inputs
        (F.linear(F.gelu(F.linear(x, up)), down) * (scale * 2)).sin().sum().backward()
    assert not waiting
    return [i.grad for i in inputs]


def both_halves(again: bool) -> None:
    inputs = tensors()
    result = checkpoint_halves(block, *inputs) if again else block(*inputs)
    with collecting() as waiting:
        torch.autograd.backward([result], [torch.ones_like(result)])
    x, *weights = inputs
    assert x.grad is not None
    if not again:  # there the weights are arguments
        assert all(w.grad is None for w in weights)
    finish(waiting)
    torch.testing.assert_close([i.grad for i in inputs], expected())


def test_both_halves_give_the_gradients_of_a_whole_backward() -> None:
    both_halves(again=False)


def test_weights_that_no_argument_shows() -> None:
    """A recomputed function finds its weights elsewhere, and learns even where none of its arguments does."""
    x, up, down, scale = tensors()
    given = x.detach()
    result = checkpoint_halves(lambda x: block(x, up, down, scale), given)
    with collecting() as waiting:
        torch.autograd.backward([result], [torch.ones_like(result)])
    assert up.grad is None and given.grad is None
    finish(waiting)
    torch.testing.assert_close([up.grad, down.grad, scale.grad], expected()[1:])


def test_the_first_half_frees_what_the_second_does_not_need() -> None:
    """The input of gelu goes, that of a contraction stays."""
    x, up, down, _scale = tensors()
    hidden = halves(lambda x, w: F.linear(x, w), (x,), (up,)).clone()
    middle = F.gelu(hidden)
    result = halves(lambda x, w: F.linear(x, w), (middle,), (down,))
    storages = [weakref.ref(t.untyped_storage()) for t in (hidden, middle)]
    with collecting() as waiting:
        torch.autograd.backward([result], [torch.ones_like(result)])
    del hidden, middle, result
    gc.collect()
    assert [s() is not None for s in storages] == [False, True]
    finish(waiting)
    gc.collect()
    assert storages[1]() is None


def test_no_gradient_is_computed_twice() -> None:
    """Each half of a contraction is one product: three with the forward."""
    x, up, _, _ = tensors()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = halves(lambda x, w: x @ w.t(), (x,), (up,))
        with collecting() as waiting:
            torch.autograd.backward([result], [torch.ones_like(result)])
        finish(waiting)
    assert sum(e.count for e in profile.key_averages() if e.key == "aten::mm") == 3


def test_gradients_of_weights_are_not_copied() -> None:
    x, up, _, _ = tensors()
    result = halves(lambda x, w: F.linear(x, w), (x,), (up,))
    with collecting() as waiting:
        torch.autograd.backward([result], [torch.ones_like(result)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        finish(waiting)
    assert not [e.key for e in profile.key_averages() if e.key in ("aten::copy_", "aten::clone")]


def test_gradients_that_are_one_tensor_add_up_apart() -> None:
    """The gradient of a sum is that of both addends; that of one must not change with the other."""
    x = torch.ones(3, requires_grad=True)
    one, other = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    for factor in (1.0, 10.0):
        result = halves(lambda x, w: x + w, (halves(lambda x, w: x + w, (x,), (one,)),), (other,))
        gradient = torch.full((3,), factor)
        with collecting() as waiting:
            torch.autograd.backward([result], [gradient])
        finish(waiting)
        assert gradient.tolist() == [factor] * 3
    assert one.grad is not None and other.grad is not None
    assert one.grad.tolist() == other.grad.tolist() == [11.0] * 3


@pytest.mark.parametrize("again", [False, True])
def test_a_group_norm_of_channels_that_lie_last(again: bool) -> None:
    """On a CPU its kernel writes the gradient of its input, even where only those of weights are asked for."""
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((4, 10, 4, 16), (16,), (16,)))

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x.permute(0, 3, 1, 2), 2, weight, bias)

    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        moved = x.permute(0, 3, 1, 2)
        return halves(lambda x, w, b: F.group_norm(x, 2, w, b), (moved,), (weight, bias)).sin()

    expected = torch.autograd.grad(norm(x, weight, bias).sin().sum(), (x, weight, bias))
    result = checkpoint_halves(run, x, weight, bias) if again else run(x, weight, bias)
    with collecting() as waiting:
        result.sum().backward()
    finish(waiting)
    torch.testing.assert_close((x.grad, weight.grad, bias.grad), expected)
