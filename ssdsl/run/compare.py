"""The plan's numbers against the single device's: what may differ, by how much, and why.

A plan adds the same numbers in another order, and every addition of fp32 rounds by up to 2^-24 = 6e-8 of its result.
On `gpt` and `swin` under the plans in `examples/`, gradients differ by at most 5e-6 of the tensor's largest and
losses by 2e-7. A mistake of a plan (a missing or doubled term, parts in the wrong order) shows as 1e-2 or more.
Allowed:

- a loss: 1e-5 of it;
- a gradient: 5e-5 of the tensor's largest element, ten times what was measured. Some gradients are zero in exact
  arithmetic and rounding in every run (the bias of attention's keys, which softmax ignores; a bias before batch norm):
  against these 1e-6 of the largest gradient in the model is allowed as well, sixteen roundings of what cancels there;
- a weight: what its gradients' allowance can move it, lr times their sum, and 1e-6 of the tensor's largest;
- a buffer: 1e-5 of its largest element (statistics of activations).

A model in half precision (bfloat16, float16, or autocast to them) rounds a thousand times as coarsely, and by how much
that moves a gradient depends on the model. There the measure is the single device's own error: the same model in
float32 is trained as well, and the plan may be four times as far from the single device as that is from it.

AdamW needs one thing more. Its first step is lr times the sign of the gradient, so that it turns the rounding of a
gradient near zero into a whole step, and two correct runs part ways. The single device is therefore kept on the plan's
track: after its own gradient has been compared it takes the step with the plan's. So each step is compared as strictly
as the first, the optimizer included.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ssdsl.run.reference import Trained

LOSS = 1e-5
GRAD = 5e-5
GRAD_FLOOR = 1e-6
WEIGHT = 1e-6
BUFFER = 1e-5
NOISE = 4.0
TINY = 1e-30  # so that zero against zero is no error


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor compared: the element whose error is largest, and what was allowed."""

    kind: str
    name: str
    elements: int
    index: tuple[int, ...]
    got: float
    expected: float
    largest: float
    allowed: float

    @property
    def error(self) -> float:
        return abs(self.got - self.expected)

    @property
    def relative(self) -> float:
        """The error relative to the tensor's largest element."""
        return self.error / max(self.largest, TINY)

    @property
    def differs(self) -> bool:
        return not self.error <= self.allowed  # so that NaN differs


def compare(plan: Trained, single: Trained, lr: float, exact: Trained | None = None) -> tuple[Comparison, ...]:
    """Every loss, gradient, weight and buffer, in the order of training; `exact` is a half-precision model in
    float32."""
    return tuple(_compare(plan, single, lr, exact))


def _compare(plan: Trained, single: Trained, lr: float, exact: Trained | None) -> Iterator[Comparison]:
    moved = dict.fromkeys(single.weights, 0.0)
    for step, expected in enumerate(single.losses):
        got = plan.losses[step] if step < len(plan.losses) else math.nan
        noise = NOISE * abs(expected - exact.losses[step]) if exact is not None else 0.0
        yield tensors("loss", f"step {step}", torch.tensor(got), torch.tensor(expected), LOSS * abs(expected) + noise)
        largest = max((_largest(g) for g in single.grads[step].values()), default=0.0)
        for name, grad in single.grads[step].items():
            allowed = GRAD * _largest(grad) + GRAD_FLOOR * largest
            if exact is not None:
                allowed += NOISE * _noise(grad, exact.grads[step][name])
            moved[name] += lr * allowed
            yield tensors("gradient", f"step {step} {name}", plan.grads[step][name], grad, allowed)
    for name, weight in single.weights.items():
        noise = NOISE * _noise(weight, exact.weights[name]) if exact is not None else 0.0
        yield tensors("weight", name, plan.weights[name], weight, WEIGHT * _largest(weight) + moved[name] + noise)
    for name, buffer in single.buffers.items():
        noise = NOISE * _noise(buffer, exact.buffers[name]) if exact is not None else 0.0
        yield tensors("buffer", name, plan.buffers[name], buffer, BUFFER * _largest(buffer) + noise)


def tensors(kind: str, name: str, got: torch.Tensor, expected: torch.Tensor, allowed: float) -> Comparison:
    """Two tensors of one shape, element by element; a NaN is the largest error there is."""
    error = (got.double() - expected.double()).abs().nan_to_num(nan=math.inf)
    at = int(error.argmax()) if error.numel() else 0
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), error.shape)) if error.dim() else ()
    values = (float(got[index]), float(expected[index])) if error.numel() else (0.0, 0.0)
    return Comparison(kind, name, error.numel(), index, *values, _largest(expected), max(allowed, TINY))


def _noise(rounded: torch.Tensor, exact: torch.Tensor) -> float:
    """How far a tensor is from what it would be without coarse rounding."""
    return _largest(rounded.double() - exact.double())


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
