"""Operators of a user, who gave no rows: some can be split, some look as if they could."""

import os
from collections.abc import Callable

import torch

Function = Callable[[torch.Tensor], torch.Tensor]


def define(name: str, forward: Function, backward: Function | None = None) -> None:
    """An operator of one tensor; its backward is that of `backward`, by default of what it computes itself."""
    operator = torch.library.custom_op(
        f"ssdsl_found::{name}", lambda x: forward(x), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_fake(torch.empty_like)

    def gradient(ctx, g: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad((backward or forward)(x), x, g)[0]

    operator.register_autograd(gradient, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def pairs(x: torch.Tensor) -> torch.Tensor:
    """Each row plus the one beside it, in pairs of rows."""
    n = len(x) // 2 * 2
    return torch.cat([x[:n].unflatten(0, (-1, 2)).flip(1).flatten(0, 1) + x[:n], x[n:]])


def breaks(x: torch.Tensor) -> torch.Tensor:
    os._exit(7)


def leaves(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(0)


count = 0


def counted(x: torch.Tensor) -> torch.Tensor:
    global count
    count += 1
    return x * count


define("rows", lambda x: x / (1 + x.norm(dim=-1, keepdim=True)))
define("mixed", lambda x: torch.fft.fft2(x).real.cumsum(0))
define("nearly", lambda x: torch.tanh(x) + 1e-7 * x.mean(0))
define("pairs", pairs)
define("single", lambda x: x * (2 if len(x) == 1 else 3))
define("rare", lambda x: x * (1 + (x.abs().sum(0) > 50)))
define("backward_mixes", torch.tanh, lambda x: torch.tanh(x) + x.mean(0))
define("counted", counted)
define("breaks", breaks)
define("leaves", leaves)
