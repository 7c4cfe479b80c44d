"""The single device: the untouched module, trained on the same batches with torch's own optimizer."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl.model.source import Model
from ssdsl.run.launch import Training
from ssdsl.runtime.draws import Draws

Tensors = dict[str, torch.Tensor]
OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave: the loss and every gradient of each step, the weights and buffers after the last.

    `start` has the weights before the first step, and `loss_type` is the type of the loss; only the single device has
    them.
    """

    losses: tuple[float, ...]
    grads: tuple[Tensors, ...]
    weights: Tensors
    buffers: Tensors
    start: Tensors = field(default_factory=dict)
    loss_type: torch.dtype = torch.float32


def reference(model: Model, training: Training, follow: Sequence[Tensors] | None = None) -> Trained:
    """Train a copy of the module for the given steps; weights without a gradient have none in `grads`.

    With `follow`, the gradients of another run, each step is taken with that run's gradients after its own are
    recorded.
    """
    module = copy.deepcopy(model.module)
    optimizer = OPTIMIZERS[training.optimizer](module.parameters(), lr=training.lr)
    start = {n: p.detach().clone() for n, p in module.named_parameters()}
    losses, grads, loss_type = [], [], torch.float32
    for step in range(training.steps):
        optimizer.zero_grad()
        with Draws(training.seed, step, model.generator):
            loss = model.compute(model.batches[step % len(model.batches)], module)
            loss.backward()
        losses.append(float(loss.detach()))
        loss_type = loss.dtype
        grads.append({n: p.grad.to_dense().clone() for n, p in module.named_parameters() if p.grad is not None})
        if follow is not None:
            _take(module, follow[step])
        optimizer.step()
    weights = {n: p.detach() for n, p in module.named_parameters()}
    buffers = dict(module.named_buffers())
    return Trained(tuple(losses), tuple(grads), weights, buffers, start, loss_type)


def _take(module: torch.nn.Module, grads: Tensors) -> None:
    for name, weight in module.named_parameters():
        if weight.grad is not None and name in grads:
            weight.grad = grads[name].to(weight.grad.dtype).clone()  # which may be sparse
