"""The single device: the untouched module, trained on the same batches with torch's own optimizer."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.runtime.options import Training
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.runtime.random.operators import Form
from ssdsl.runtime.random.single_device import Draws
from ssdsl.runtime.train.optimizer import asked_optimizer, own_options
from ssdsl.runtime.train.precision import without_tf32

Tensors = dict[str, torch.Tensor]
Types = tuple[torch.dtype, ...]
Name = tuple[str, str]  # a kind of tensor (loss, gradient, weight, buffer), and which one it is


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training: the loss and every gradient of each step, and the final weights and buffers, on the CPU.

    `start` has the initial weights, `loss_type` is the type of the loss, and `drawn` has the types of the random
    tensors of a step; only the single device has these.
    """

    losses: tuple[float, ...]
    grads: tuple[Tensors, ...]
    weights: Tensors
    buffers: Tensors
    start: Tensors = field(default_factory=dict)
    loss_type: torch.dtype = torch.float32
    drawn: tuple[Types, ...] = ()

    def tensors(self) -> dict[Name, torch.Tensor]:
        """All losses, gradients, weights and buffers, in the order of training."""
        found: dict[Name, torch.Tensor] = {}
        for step, grads in enumerate(self.grads):
            if step < len(self.losses):
                found[loss_of(step)] = torch.tensor(self.losses[step], dtype=torch.float64)
            found |= {gradient_of(step, name): grad for name, grad in grads.items()}
        found |= {("weight", name): weight for name, weight in self.weights.items()}
        return found | {("buffer", name): buffer for name, buffer in self.buffers.items()}


def loss_of(step: int) -> Name:
    return "loss", f"step {step}"


def gradient_of(step: int, name: str) -> Name:
    return "gradient", f"step {step} {name}"


def moved(model: Model, device: str) -> Model:
    """A copy of the model on a device."""
    batches = tuple({name: tensor.to(device) for name, tensor in batch.items()} for batch in model.batches)
    return replace(model, module=copy.deepcopy(model.module).to(device), batches=batches)


def reference(
    model: Model, training: Training, follow: Sequence[Tensors] | None = None, drawn: Sequence[Types] = ()
) -> Trained:
    """Trains a copy of the module; arguments as in `train`."""
    return train(replace(model, module=copy.deepcopy(model.module)), training, follow, drawn)


def train(
    model: Model,
    training: Training,
    follow: Sequence[Tensors] | None = None,
    drawn: Sequence[Types] = (),
    *,
    draws: bool = True,
) -> Trained:
    """Trains the module for the given steps, on the device that it is on; weights without a gradient have none in
    `grads`.

    With `follow`, the gradients of another run, each step is taken with that run's gradients after its own are
    recorded. With `drawn`, the types of each step's random tensors in order, these are rounded to these types, whatever
    type the step computes in. Without `draws` it is a model that draws nothing: torch.compile leaves alone what runs
    where draws are replaced.
    """
    module = model.module
    name, make, options = asked_optimizer(training.optimizer)
    are_real = not any(p.is_complex() for p in module.parameters() if p.requires_grad)
    options = {"lr": training.lr, **own_options(name, are_real=are_real), **options}
    optimizer: Any = make([*module.parameters()], **options)
    start = {n: _copy(p) for n, p in module.named_parameters()}
    losses, grads, types, loss_type = [], [], [], torch.float32
    for step in range(training.steps):
        optimizer.zero_grad()
        random = _TypedDraws(training.seed, step, model.generator, drawn[step] if drawn else ())
        with random if draws else nullcontext(), without_tf32():
            loss = model.compute(model.batches[step % len(model.batches)], module)
            loss.backward()
        losses.append(float(loss.detach()))
        types.append(tuple(random.types))
        loss_type = loss.dtype
        grads.append({n: _copy(p.grad.to_dense()) for n, p in module.named_parameters() if p.grad is not None})
        if follow is not None:
            _take(module, follow[step])
        optimizer.step()
    weights = {n: p.detach().cpu() for n, p in module.named_parameters()}
    buffers = {n: b.cpu() for n, b in module.named_buffers()}
    return Trained(tuple(losses), tuple(grads), weights, buffers, start, loss_type, tuple(types))


class _TypedDraws(Draws):  # type: ignore[no-untyped-call]
    """Records the types of random draws, or makes draws in given types, in order."""

    def __init__(self, seed: int, step: int, generator: Generator, given: Types) -> None:
        super().__init__(seed, step, generator)
        self.types: list[torch.dtype] = []
        self.given: Iterator[torch.dtype] = iter(given)

    def draw(self, name: str, first: float, second: float, form: Form) -> torch.Tensor:
        self.types.append(next(self.given, form.dtype))
        return super().draw(name, first, second, form._replace(dtype=self.types[-1]))


def _take(module: torch.nn.Module, grads: Tensors) -> None:
    """Replaces the gradients of weights that have one, by dense tensors (its own may be sparse). They lie in memory as
    their weights do: the fused AdamW reads both element by element in the order of memory."""
    for name, weight in module.named_parameters():
        if weight.grad is not None and name in grads:
            weight.grad = torch.empty_like(weight, dtype=weight.grad.dtype).copy_(grads[name])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
