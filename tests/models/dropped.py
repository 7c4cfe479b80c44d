"""Forwards that do what torch.export drops or changes without a word; each function is the forward of a small model."""

import random
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    """Two linear layers, and a forward that is given."""

    def __init__(self, compute: Callable[["Net", torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.compute = compute
        self.fc = nn.Linear(4, 4)
        self.trunk = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)
        self.table = nn.Embedding(9, 4, max_norm=0.5)
        self.register_buffer("count", torch.zeros(()))
        self.plain = torch.ones(4)
        self.step = 0
        self.seen: list[Any] = []
        self.kept: Any = None
        self.scale: Any = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)


class Reversed(torch.autograd.Function):
    """The identity, whose backward turns the gradient round."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -gradient


class Clipped(torch.autograd.Function):
    """The identity, whose backward limits the gradient."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.clamp(-100, 100)


class Square(torch.autograd.Function):
    """The square, with its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def reverses(net: Net, x: torch.Tensor) -> torch.Tensor:
    return Reversed.apply(net.fc(x)).square().sum()


def clips(net: Net, x: torch.Tensor) -> torch.Tensor:
    return Clipped.apply(net.fc(x)).square().sum()


def squares(net: Net, x: torch.Tensor) -> torch.Tensor:
    return Square.apply(net.fc(x)).sum()


def checkpoints_reentrantly(net: Net, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(net.fc, net.trunk(x), use_reentrant=True).square().sum()


def checkpoints(net: Net, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(net.fc, net.trunk(x), use_reentrant=False).square().sum()


def hooks_a_tensor(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    y.register_hook(lambda gradient: gradient * 3)
    return y.square().sum()


def hooks_saved_tensors(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return net.fc(x).square().sum()


def calls_backward(net: Net, x: torch.Tensor) -> torch.Tensor:
    loss = net.fc(x).square().sum()
    loss.backward(retain_graph=True)
    return loss


def plain(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.trunk(net.fc(x)).square().sum()


def changes_an_input(net: Net, x: torch.Tensor) -> torch.Tensor:
    x[:, 0].mul_(2)
    return net.fc(x).square().sum()


def changes_a_weight(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        net.fc.weight.mul_(0.9)
    return net.fc(x).square().sum()


def changes_a_weights_data(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.fc.weight.data.mul_(0.9)
    return net.fc(x).square().sum()


def assigns_data(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.fc.weight.data = net.fc.weight * 0.9
    return net.fc(x).square().sum()


def limits_an_embedding(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.table(x.abs().long()).square().sum() + net.fc(x).sum()


def changes_what_is_detached(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x).square()
    y.detach()[0].mul_(2)
    return (y * 3).sum() + net.trunk(x).sum()


def changes_without_gradient(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x).square()
    with torch.no_grad():
        y.mul_(2)
    return (y * 3).sum() + net.trunk(x).sum()


def changes_an_attribute(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.plain.add_(1)
    return (net.fc(x) * net.plain).sum()


def changes_buffers(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.count.add_(1)
    with torch.no_grad():
        net.count.mul_(2)
    net.count.data.add_(1)
    return (net.fc(x) * net.count).square().sum()


def counts(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.step += 1
    return (net.fc(x) * net.step).square().sum()


def collects(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.seen.append(net.fc(x).detach())
    return (net.fc(x) * len(net.seen)).square().sum()


def carries_on(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x) if net.kept is None else net.fc(x) + net.kept
    net.kept = y.detach()
    return y.square().sum()


def replaces_a_buffer(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.count = net.count + 1
    return (net.fc(x) * net.count).square().sum()


def replaces_a_weight(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.fc.weight = nn.Parameter(net.fc.weight.detach() * 2)
    return net.fc(x).square().sum()


def freezes(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.fc.weight.requires_grad_(False)
    return plain(net, x)


def draws(net: Net, x: torch.Tensor) -> torch.Tensor:
    return (net.fc(x) * random.random()).square().sum()


def draws_from_numpy(net: Net, x: torch.Tensor) -> torch.Tensor:
    return (net.fc(x) * float(np.random.rand())).square().sum()


def keeps_the_last(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.kept = net.fc(x)
    net.count.add_(1)
    net.scale = net.count * torch.ones(4)  # another value in each call, and not read before
    return (net.kept * net.scale).square().sum()


def fills_a_cache(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.kept is None:
        net.kept = torch.full((4,), 2.0)
    net.seen.clear()
    net.seen.append(x)
    return (net.fc(x) * net.kept).square().sum()


def reads_data(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.fc(x)
    return (y.data * y).sum()


def takes_gradients(net: Net, x: torch.Tensor) -> torch.Tensor:
    loss = net.fc(x).square().sum()
    (still,) = torch.autograd.grad(loss, net.fc.weight, retain_graph=True)
    (flows,) = torch.autograd.grad(loss, net.fc.weight, create_graph=True)
    return loss * still.square().sum() + flows.square().sum()


def evaluates_a_part(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.norm.eval()
    return net.norm(net.fc(x)).square().sum()


def casts(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = net.trunk(net.fc(x))
        with torch.autocast("cpu", enabled=False):
            exact = net.fc(y.float())
        with torch.no_grad():
            scale = net.fc(x).abs().amax()
        found = (exact * scale) @ net.trunk[0].weight
    return (found.float() + F.layer_norm(y, (4,))).square().sum()


def casts_elsewhere(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return net.fc(x).float().square().sum()


def misspells(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.fcc(x).sum()


def calls_wrongly(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.fc(x, 3).sum()


def mismatches(net: Net, x: torch.Tensor) -> torch.Tensor:
    return (net.fc(x) @ torch.ones(3, 3)).sum()


def reads_the_clock(net: Net, x: torch.Tensor) -> torch.Tensor:
    return (net.fc(x) * (1 + time.perf_counter_ns() % 1_000_003)).square().sum()


def asks_whether_it_is_captured(net: Net, x: torch.Tensor) -> torch.Tensor:
    return (net.fc(x) * (2 if torch.compiler.is_compiling() else 1)).square().sum()


def uses_up_its_graph(net: Net, x: torch.Tensor) -> torch.Tensor:
    loss = net.fc(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, net.fc.weight)
    return loss * gradient.sum()


def _tracked(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Says by its name that it changes nothing, and changes a buffer."""
    count.add_(1)
    return x * 1.0


LIBRARY = torch.library.Library("ssdsl_dropped", "DEF")
LIBRARY.define("tracked(Tensor x, Tensor count) -> Tensor")
LIBRARY.impl("tracked", _tracked, "CompositeImplicitAutograd")


def changes_a_buffer_unseen(net: Net, x: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, torch.ops.ssdsl_dropped.tracked(net.fc(x), net.count)).square().sum()


def counts_where_it_is_not_captured(net: Net, x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        net.count.add_(1)
    return net.fc(x).square().sum()


def multiplies_by_zero_where_it_is_not_captured(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.trunk(x)
    return net.fc(x).square().sum() + (0 * y.detach() if torch.compiler.is_compiling() else 0 * y).sum()


class Taken(torch.autograd.Function):
    """A product with a number that is taken from a list: a second call finds none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, left: list[float]) -> torch.Tensor:
        return x * left.pop()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient * 2.0, None


def takes(net: Net, x: torch.Tensor) -> torch.Tensor:
    return Taken.apply(net.fc(x), [2.0]).square().sum()


def averages_a_teacher(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.trunk(x)
    with torch.no_grad():
        for weight in net.fc.parameters():
            weight.mul_(0.9).add_(0.1)
    return (net.fc(x) - y).square().sum()


def shares_memory(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        net.count.set_(net.fc.weight[0].detach())
    return net.fc(x).square().sum() * net.count.sum()


def checks_a_mask_of_its_own(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.kept = torch.ones(x.shape[0], dtype=torch.bool)
    return net.fc(x * 2 if net.kept.all() else x).square().sum()


def finds_rows(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.fc(x)[x[:, 0].nonzero()[:, 0]].square().sum()


def reverses_by_a_class_of_its_own(net: Net, x: torch.Tensor) -> torch.Tensor:
    class Turned(Reversed):
        pass

    return Turned.apply(net.fc(x)).square().sum()


def rounds_by_a_class_of_its_own(net: Net, x: torch.Tensor) -> torch.Tensor:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.round()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient

    return Rounded.apply(net.fc(x)).square().sum()


class Applied(torch.autograd.Function):
    """The result of a function, whose gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return -gradient, None


def reverses_a_function(net: Net, x: torch.Tensor) -> torch.Tensor:
    return Applied.apply(net.fc(x), torch.tanh).square().sum()


def reverses_in_autocast(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return Reversed.apply(net.fc(x)).float().square().sum()


class Halves(torch.autograd.Function):
    """A reversible block as they are written: modules among the arguments, whose weights get gradients in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, first: nn.Module, second: nn.Module) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        b = b + first(a)
        a = a + second(b)
        ctx.save_for_backward(a, b)
        ctx.modules = first, second
        return torch.cat([a, b], -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return gradient, None, None


def reverses_blocks(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = torch.cat([net.fc(x), net.trunk(x)], -1)
    return Halves.apply(y, net.fc, net.trunk).square().sum()


class InPlace(torch.autograd.Function):
    """A product that is written into its operand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2.0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2.0


def changes_an_argument(net: Net, x: torch.Tensor) -> torch.Tensor:
    return InPlace.apply(net.fc(x)).square().sum()
