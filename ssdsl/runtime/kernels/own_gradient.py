"""Kernels with a gradient of their own, which autograd takes in place of one that it derives from their operators.

>>> def gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
...     return given * ctx.factor
>>> @with_gradient(gradient)
... def times(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
...     ctx.factor = factor
...     return x * factor
>>> x = torch.ones(2, requires_grad=True)
>>> times(x, factor=3.0).sum().backward()
>>> x.grad
tensor([3., 3.])
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.autograd.function import once_differentiable

P = ParamSpec("P")
R = TypeVar("R")
Gradients = torch.Tensor | None | tuple[torch.Tensor | None, ...]


def with_gradient(
    gradient: Callable[[Any, torch.Tensor], Gradients],
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]:
    """A decorator for a kernel whose first parameter is autograd's context, which callers do not give.

    `gradient(ctx, given)` has the gradients of the kernel's first arguments from that of its (first) result. The
    arguments behind those have none.
    """

    def decorated(kernel: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
        signature = inspect.signature(kernel)

        @once_differentiable
        def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            found = gradient(ctx, given[0])
            found = found if isinstance(found, tuple) else (found,)
            return *found, *[None] * (len(ctx.needs_input_grad) - len(found))

        methods = {"forward": staticmethod(kernel), "backward": staticmethod(backward)}
        function: Any = type(kernel.__name__, (torch.autograd.Function,), methods)

        @functools.wraps(kernel)
        def call(*args: P.args, **options: P.kwargs) -> R:
            given: tuple[Any, ...] = args
            if options or len(args) < len(signature.parameters) - 1:  # binding takes some microseconds
                bound = signature.bind(None, *args, **options)
                bound.apply_defaults()
                given = bound.args[1:]
            return function.apply(*given)  # type: ignore[no-any-return]

        return call

    return decorated
