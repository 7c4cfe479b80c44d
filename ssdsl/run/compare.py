"""The plan's numbers against the single device's: what may differ, by how much, and why.

A plan adds the same numbers in another order, so it rounds otherwise. A tensor may differ by the larger of

- FACTOR times its measured growth (`growth.py`): how far the single device moves when its weights and inputs are wrong
  by one unit in the last place;
- the rounding of the sum that makes it: some units in the last place of the tensor's largest element.

Both were chosen from 49 correct runs (plans in `examples/` and `tests/verify/plans/`, 8 models, float32 and bfloat16,
several seeds). The worst of their tensors used 0.68 of what it may (the gradient of a layer norm's bias, a long sum),
the median one 0.09. In float32 a gradient may differ by about 5e-6 of its largest element, in bfloat16 by a fifth.

A sum that cancels in exact arithmetic is rounding in every run, and so is the difference; but no run's rounding is zero
in every element. A gradient that is zero everywhere, where the single device's is not, is therefore missing, however
small it is.

AdamW needs one thing more. Its first step is lr times the sign of the gradient, so that it turns the rounding of a
gradient near zero into a whole step, and two correct runs part ways. The single device is therefore kept on the plan's
track: after its own gradient has been compared it takes the step with the plan's. So each step is compared as strictly
as the first, the optimizer included.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from ssdsl.run.growth import Growth
from ssdsl.run.reference import Trained

FACTOR = 8.0
SUM_UNITS = 16  # of a gradient, or a buffer: sums over the batch
LOSS_UNITS = 4  # its parts are means, and a few of them are added
STEP_UNITS = 2  # of a weight, each step: weight decay rounds it, and so does the update
CHANCE = 8  # this many elements are not all zero by rounding


class Limit(StrEnum):
    """What decides how far a tensor may be off."""

    GROWTH = "growth"
    ROUNDING = "rounding"
    ZERO = "zero"  # it is zero everywhere, and must not be


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor compared: the element whose error is largest, and what was allowed.

    `growth` is the measured growth, `rounding` the least that is allowed, `missing` a gradient that is zero everywhere.
    """

    kind: str
    name: str
    elements: int
    index: tuple[int, ...]
    got: float
    expected: float
    error: float
    largest: float
    growth: float
    rounding: float
    missing: bool = False

    @property
    def limit(self) -> Limit:
        if self.missing:
            return Limit.ZERO
        return Limit.GROWTH if FACTOR * self.growth > self.rounding else Limit.ROUNDING

    @property
    def allowed(self) -> float:
        return 0.0 if self.missing else max(FACTOR * self.growth, self.rounding)

    @property
    def relative(self) -> float:
        """The error relative to the tensor's largest element."""
        return _ratio(self.error, self.largest)

    @property
    def share(self) -> float:
        """The error relative to what is allowed: more than 1 for a tensor that differs."""
        return _ratio(self.error, self.allowed)

    @property
    def differs(self) -> bool:
        return not self.error <= self.allowed


def compare(plan: Trained, single: Trained, growth: Growth) -> tuple[Comparison, ...]:
    """Every loss, gradient, weight and buffer, in the order of training."""
    return tuple(_compare(plan, single, growth))


def _compare(plan: Trained, single: Trained, growth: Growth) -> Iterator[Comparison]:
    for step, loss in enumerate(single.losses):
        got = plan.losses[step] if step < len(plan.losses) else math.nan
        unit = torch.finfo(single.loss_type).eps
        expected = torch.tensor(loss, dtype=torch.float64)
        rounding = LOSS_UNITS * unit * _largest(expected)
        yield tensors(
            "loss", f"step {step}", torch.tensor(got, dtype=torch.float64), expected, growth.losses[step], rounding
        )
        for name, grad in single.grads[step].items():
            rounding = SUM_UNITS * _unit(grad)
            found = plan.grads[step][name]
            yield tensors("gradient", f"step {step} {name}", found, grad, growth.grads[step].get(name, 0.0), rounding)
        for name, found in plan.grads[step].items():
            if name not in single.grads[step] and found.any():  # one device has none
                yield tensors("gradient", f"step {step} {name}", found, torch.zeros_like(found))
    for name, weight in single.weights.items():
        rounding = STEP_UNITS * len(single.losses) * _unit(weight)
        yield tensors("weight", name, plan.weights[name], weight, growth.weights[name], rounding)
    for name, buffer in single.buffers.items():
        yield tensors("buffer", name, plan.buffers[name], buffer, growth.buffers[name], SUM_UNITS * _unit(buffer))


def tensors(
    kind: str, name: str, got: torch.Tensor, expected: torch.Tensor, growth: float = 0.0, rounding: float = 0.0
) -> Comparison:
    """Two tensors of one shape, element by element.

    A NaN equals a NaN, and an infinity the same one; a number that should be one of them, or is one and should not, is
    the largest error there is.
    """
    ours, theirs = got.detach().double(), expected.detach().double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = torch.where(same, 0.0, (ours - theirs).abs().nan_to_num(nan=math.inf))
    at = int(error.argmax()) if error.numel() else 0
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), error.shape)) if error.numel() else ()
    values = (float(ours[index]), float(theirs[index]), float(error[index])) if error.numel() else (0.0, 0.0, 0.0)
    missing = kind == "gradient" and not ours.any() and int(theirs.count_nonzero()) >= CHANCE
    return Comparison(kind, name, error.numel(), index, *values, _largest(theirs), growth, rounding, missing)


def _unit(tensor: torch.Tensor) -> float:
    """One unit in the last place of a tensor's largest element; none of whole numbers, which are exact."""
    return torch.finfo(tensor.dtype).eps * _largest(tensor) if tensor.is_floating_point() else 0.0


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite element, without its sign."""
    sizes = tensor.detach().double().abs()
    return float(sizes.nan_to_num(nan=0.0, posinf=0.0).max()) if tensor.numel() else 0.0


def _ratio(error: float, of: float) -> float:
    if not error:
        return 0.0
    return error / of if of else math.inf
