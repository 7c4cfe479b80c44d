"""The single device: the untouched module, trained on the same batches with torch's own optimizer."""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ssdsl.model.source import Model
from ssdsl.run.launch import Training
from ssdsl.runtime.draws import Draws

Tensors = dict[str, torch.Tensor]
OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave: the loss and every gradient of each step, the weights and buffers after the last.

    `start` has the weights before the first step, and `loss_type` is the type of the loss; only the single device has
    them. `loss_terms` are, where they were asked for, the largest numbers that the losses are made of.
    """

    losses: tuple[float, ...]
    grads: tuple[Tensors, ...]
    weights: Tensors
    buffers: Tensors
    start: Tensors = field(default_factory=dict)
    loss_type: torch.dtype = torch.float32
    loss_terms: tuple[float, ...] = ()


def reference(
    model: Model, training: Training, follow: Sequence[Tensors] | None = None, *, terms: bool = False
) -> Trained:
    """Train a copy of the module for the given steps; weights without a gradient have none in `grads`.

    With `follow`, the gradients of another run, each step is taken with that run's gradients after its own are
    recorded. `terms` asks for the `loss_terms`.
    """
    module = copy.deepcopy(model.module)
    optimizer = OPTIMIZERS[training.optimizer](module.parameters(), lr=training.lr)
    start = {n: p.detach().clone() for n, p in module.named_parameters()}
    losses, grads, loss_type, largest = [], [], torch.float32, []
    for step in range(training.steps):
        optimizer.zero_grad()
        with Draws(training.seed, step, model.generator), _Scalars() if terms else nullcontext() as scalars:
            loss = _loss(module(**model.batches[step % len(model.batches)]))
            loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        if scalars is not None:
            largest.append(scalars.largest())
        loss_type = loss.dtype
        grads.append({n: p.grad.to_dense().clone() for n, p in module.named_parameters() if p.grad is not None})
        if follow is not None:
            _take(module, follow[step])
        optimizer.step()
    weights = {n: p.detach() for n, p in module.named_parameters()}
    buffers = dict(module.named_buffers())
    return Trained(tuple(losses), tuple(grads), weights, buffers, start, loss_type, tuple(largest))


class _Scalars(TorchFunctionMode):
    """Notes the single numbers that a forward computes: their rounding is the loss's, times its derivative by them.

    >>> with _Scalars() as scalars:
    ...     loss = 1 - 0.5 * torch.full((), 2.0, requires_grad=True)
    ...     loss.backward()
    >>> float(loss), scalars.largest()
    (0.0, 1.0)
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and not result.dim() and result.requires_grad and not result.is_leaf:
            result.retain_grad()
            self.seen.append(result)
        return result

    def largest(self) -> float:
        """The largest of them, each in the size that it has in the loss; behind backward."""
        with torch._C.DisableTorchFunction():
            sizes = [float((x.detach() * x.grad).abs()) for x in self.seen if x.grad is not None]
        return max((x for x in sizes if math.isfinite(x)), default=0.0)


def _take(module: torch.nn.Module, grads: Tensors) -> None:
    for name, weight in module.named_parameters():
        if weight.grad is not None and name in grads:
            weight.grad.copy_(grads[name])


def _loss(result: Any) -> torch.Tensor:
    loss = result if isinstance(result, torch.Tensor) else result.loss
    assert isinstance(loss, torch.Tensor)
    return loss
