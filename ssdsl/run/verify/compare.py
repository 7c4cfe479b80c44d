"""Compares the plan's numbers with the single device's: which differences rounding allows, and why.

A plan adds the same numbers in another order, so it rounds differently. A tensor may differ by the larger of

- FACTOR times the measured effect of rounding (`error_growth.py`): how far the single device is from itself in
  float64, and how far it moves when its weights and inputs are wrong by one unit in the last place;
- the rounding of the sum that makes it: some units in the last place of the tensor's largest element.

Both were chosen from correct runs (`python -m bench rounding`, and plans in `examples/` and `tests/verify/plans/`). In
float32 a gradient may differ by about 5e-6 of its largest element, in bfloat16 by 2 to 12 %. So a mistake may hide in
bfloat16; there the program and the single device are compared in float64 too (`verify.py`). In bfloat16 the worst
gradient of a correct run, of 64 micro-batches, was off by 1.4 times the growth; in float32 one was by 4.6 times, where
the plan's sums are longer than the single device's.

A sum that cancels in exact arithmetic is rounding in every run, and so is the difference. It rounds as its addends do:
this is measured (`error_growth.py`), and they may be as large as the largest gradient. But no run's rounding of several
numbers is zero in all of them. A gradient that is zero everywhere, where the single device's is not, is therefore
missing, however small it is; unless the plan adds equal numbers of opposite signs, which shows where their last digits
are wrong (`verify.py`).

AdamW needs one thing more. Its first step is lr times the sign of the gradient, so that it turns the rounding of a
gradient near zero into a whole step, and two correct runs part ways. The single device is therefore kept on the plan's
track: after its own gradient has been compared it takes the step with the plan's. So each step is compared as strictly
as the first, the optimizer included.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from ssdsl.record import replace
from ssdsl.run.in_process.precision import real_of
from ssdsl.run.verify.error_growth import Growth
from ssdsl.run.verify.single_device import Name, Tensors, Trained, gradient_of, loss_of

FACTOR = 8.0
SUM_UNITS = 16  # for a gradient or buffer: sums over the batch
HALF_FACTOR, HALF_SUM_UNITS = 4.0, 4  # in half precision, whose operators accumulate in float32
HALVES = torch.bfloat16, torch.float16
LOSS_UNITS = 4  # for a loss: its parts are means, and few of them are added
STEP_UNITS = 2  # for a weight, per step: weight decay rounds it, and so does the update
SHARP = 1e-3  # of a tensor's largest element
CHANCE = 8  # so many independent rounding errors are not all zero
UNITS = {torch.float64: 2.0**-40}  # the last twelve bits are left to long sums; eleven digits are compared


class Limit(StrEnum):
    """The reason of the allowed difference of a tensor."""

    GROWTH = "growth"
    ROUNDING = "rounding"
    UNKNOWN = "unknown"  # every run with other last digits is infinite or NaN
    ZERO = "zero"  # all zero where it must not be


@dataclass(frozen=True, slots=True)
class Comparison:
    """One compared tensor: the element with the largest error relative to its limit, and the limit.

    `growth` is the measured growth, of which `factor` times as much is allowed, `rounding` the least that is allowed,
    `missing` a gradient that is zero everywhere.
    `in_float64`: the plan and the single device trained once more, and computed everything in float64.
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
    factor: float = FACTOR
    missing: bool = False
    in_float64: bool = False

    @property
    def what(self) -> str:
        """The kind of tensor, and the kind of run."""
        return f"{self.kind} in float64" if self.in_float64 else self.kind

    @property
    def limit(self) -> Limit:
        if self.missing:
            return Limit.ZERO
        if math.isinf(self.growth):
            return Limit.UNKNOWN
        return Limit.GROWTH if self.factor * self.growth > self.rounding else Limit.ROUNDING

    @property
    def allowed(self) -> float:
        return 0.0 if self.missing else max(self.factor * self.growth, self.rounding)

    @property
    def relative(self) -> float:
        """The error relative to the tensor's largest element."""
        return _ratio(self.error, self.largest)

    @property
    def share(self) -> float:
        """The error relative to the allowed one: above 1 for a tensor that differs."""
        return _ratio(self.error, self.allowed)

    @property
    def differs(self) -> bool:
        return not self.error <= self.allowed

    @property
    def is_rounding(self) -> bool:
        """Whether the whole tensor may be rounding error: it is zero in exact arithmetic, or too small to tell. Where
        it is zero on the single device, the plan's is rounding as far as that is allowed."""
        shown = self.largest or (0.0 if self.differs else self.error)
        return shown > 0 and self.largest <= self.allowed < math.inf

    @property
    def is_compared(self) -> bool:
        """Whether it says anything: a NaN equals a NaN, and an infinity the same infinity."""
        return self.differs or self.largest > 0 or math.isfinite(self.expected)

    @property
    def is_sharp(self) -> bool:
        """Whether a mistake of a thousandth of the largest element would show."""
        return self.allowed <= SHARP * self.largest


def worst_of(found: Sequence[Comparison]) -> Comparison:
    """The tensor that came closest to what is allowed, or exceeded it most. One of which only rounding remains counts
    where there are no others, or where it differs."""
    return max([c for c in found if c.differs or not c.is_rounding] or found, key=lambda c: c.share)


def compare(
    plan: Trained,
    single: Trained,
    growth: Growth,
    precision: torch.dtype = torch.float32,
    computed: Collection[Name] = (),
) -> tuple[Comparison, ...]:
    """Compares every loss, gradient, weight and buffer, in the order of training, for steps in this precision. Those of
    the gradients that are `computed` are not missing where they are zero everywhere."""
    factor = HALF_FACTOR if precision in HALVES else FACTOR
    return tuple(replace(c, factor=factor) for c in _compare(plan, single, growth, computed))


def _compare(plan: Trained, single: Trained, growth: Growth, computed: Collection[Name]) -> Iterator[Comparison]:
    for step, loss in enumerate(single.losses):
        got = plan.losses[step] if step < len(plan.losses) else math.nan
        expected = torch.tensor(loss, dtype=torch.float64)
        rounding = LOSS_UNITS * unit_of(single.loss_type) * _largest(expected)
        yield tensors(*loss_of(step), torch.tensor(got, dtype=torch.float64), expected, growth[loss_of(step)], rounding)
        for name, grad in single.grads[step].items():
            key, found = gradient_of(step, name), plan.grads[step][name]
            own = tensors(*key, found, grad, growth.get(key, 0.0), _sum_rounding(grad))
            own = replace(own, missing=own.missing and key not in computed)
            if own.is_rounding and own.differs:
                own = replace(own, rounding=max(own.rounding, _addends_rounding(single.grads[step])))
            yield own
        for name, found in plan.grads[step].items():
            if name not in single.grads[step] and found.any():  # one device has none
                yield tensors(*gradient_of(step, name), found, torch.zeros_like(found))
    for name, weight in single.weights.items():
        rounding = STEP_UNITS * len(single.losses) * _unit(weight)
        yield tensors("weight", name, plan.weights[name], weight, growth["weight", name], rounding)
    for name, buffer in single.buffers.items():
        yield tensors("buffer", name, plan.buffers[name], buffer, growth["buffer", name], _sum_rounding(buffer))


def tensors(
    kind: str, name: str, got: torch.Tensor, expected: torch.Tensor, growth: float = 0.0, rounding: float = 0.0
) -> Comparison:
    """Compares two tensors of one shape, element by element.

    A NaN equals a NaN, and an infinity the same infinity; a NaN or infinity on one side only is the largest possible
    error. A complex number counts as two elements, its parts.
    """
    ours, theirs = real_of(got.detach()).double(), real_of(expected.detach()).double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = torch.where(same, 0.0, (ours - theirs).abs().nan_to_num(nan=math.inf))
    at = int(error.argmax()) if error.numel() else 0
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), error.shape)) if error.numel() else ()
    values = (float(ours[index]), float(theirs[index]), float(error[index])) if error.numel() else (0.0, 0.0, 0.0)
    missing = kind == "gradient" and not ours.any() and _roundings(theirs) >= CHANCE
    return Comparison(kind, name, error.numel(), index, *values, _largest(theirs), growth, rounding, missing=missing)


def _roundings(gradient: torch.Tensor) -> int:
    """The least number of independent roundings, if the tensor is only rounding error. A weight's gradient is a
    product, where one number's error may fill a row or a column."""
    there = gradient.squeeze() != 0
    if there.ndim < 2:
        return int(there.sum())
    there = there.flatten(1)
    return min(int(there.any(1).sum()), int(there.any(0).sum()))


def _sum_rounding(tensor: torch.Tensor) -> float:
    """The allowed rounding error of a sum over the batch."""
    return (HALF_SUM_UNITS if tensor.dtype in HALVES else SUM_UNITS) * _unit(tensor)


def _addends_rounding(gradients: Tensors) -> float:
    """The allowed rounding error of a sum of which nothing is left: its addends may be as large as any gradient."""
    return SUM_UNITS * max(torch.finfo(g.dtype).eps * _largest(g) for g in gradients.values())


def _unit(tensor: torch.Tensor) -> float:
    """One unit in the last place of a tensor's largest element; zero for integers, which are exact."""
    tensor = real_of(tensor)
    return unit_of(tensor.dtype) * _largest(tensor) if tensor.is_floating_point() else 0.0


def unit_of(dtype: torch.dtype) -> float:
    """One unit in the last place of a number near one."""
    return UNITS.get(dtype, torch.finfo(dtype).eps)


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite absolute value."""
    sizes = real_of(tensor.detach()).double().abs()
    return float(sizes.nan_to_num(nan=0.0, posinf=0.0).max()) if tensor.numel() else 0.0


def _ratio(error: float, of: float) -> float:
    if not error:
        return 0.0
    return error / of if of else math.inf
