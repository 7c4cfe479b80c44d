"""Measures how far rounding takes the single device: its own error, and the growth of the smallest error.

Its *own error* is how far it is from the same training in float64, which hardly rounds: a long sum that adds one after
another (a row of an embedding that most tokens read) shows in nothing else.

The *growth* is the single device again, with the last digit of weights, inputs and scalars wrong.

No operator is exact, so each passes on an error of about one unit of its type, and the ones after it make that larger
or smaller. How much of it reaches a gradient depends on the model, and is measured here rather than guessed. A run with
other last digits also rounds otherwise in every operator, so that it shows the noise of sums that cancel (the gradient
of attention's key bias, or of a bias before batch norm, is nothing else).

Compiled kernels round otherwise than eager ones: before a plan with such is called wrong, the single device trains in
them too.

One run is too noisy a measure of a single number, such as a loss: a normal error is below a tenth of its standard
deviation in 1 of 13 draws. Four draws (three runs, and its own error) are all below it in 1 of 25 000.
"""

import contextlib
import copy
import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch._dynamo.exc import TorchDynamoException

from ssdsl.ir.program import Kernels
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.in_process.precision import RoundedScalars, computing_in, in_type, nudged, precision, real_of
from ssdsl.run.verify.single_device import Name, Tensors, Trained, gradient_of, moved, reference, train
from ssdsl.runtime.kernels.compiled import BACKEND
from ssdsl.runtime.options import Training

SEED = 20_001  # seed of the first run; a number that no model is likely to use
RUNS = 3
MORE_RUNS = 16  # before a plan is called wrong
CANCELLED = 8  # times the rounding of its addends: a sum that is no larger is nothing else
EXACT = torch.float64  # hardly rounds beside the types in which models train


# The largest distance of other runs from the single device's, for each tensor. It is infinite where every other run is
# infinite or NaN and the single device's is not.
Growth = dict[Name, float]


class SingleDevice:
    """The training on a single device and its accuracy, both computed on demand, on a device of the training's kind.

    With `follow`, the gradients of another run, each step is taken with that run's (`single_device.py`). It is eager
    itself, whatever `kernels` it is compared with.
    """

    def __init__(
        self,
        model: Model,
        training: Training,
        follow: Sequence[Tensors] | None = None,
        kernels: Kernels = Kernels.EAGER,
    ) -> None:
        self.model, self.training, self.follow, self.kernels = model.with_numbers(), training, follow, kernels

    @cached_property
    def _run(self) -> tuple[Model, Trained]:
        """The model where it trains, and the training. A module that cannot train on a GPU does on the CPU: it may keep
        a tensor that does not move there, or be too large."""
        if self.training.device != "cpu":
            with contextlib.suppress(RuntimeError):
                there = moved(self.model, self.training.device)
                return there, reference(there, self.training, self.follow)
        return self.model, reference(self.model, self.training, self.follow)

    @property
    def trained(self) -> Trained:
        """The training itself."""
        return self._run[1]

    @cached_property
    def precision(self) -> torch.dtype:
        """The coarsest type in which it computes."""
        return precision(self._run[0])

    @cached_property
    def exact(self) -> Trained | None:
        """The same training in float64; None if that is its precision, or the model cannot compute in it."""
        return None if self.precision == EXACT else self.exact_along(self.follow)

    @cached_property
    def growth(self) -> Growth:
        """The larger of its own error and the growth over a few runs."""
        own = [growth_between(self.trained, self.exact)] if self.exact is not None else []
        return largest_of([*own, *self._growths(range(RUNS))])

    @cached_property
    def growth_of_many(self) -> Growth:
        """The growth over more runs; used before a plan is called wrong."""
        kernels = self._of_kernels() if self.kernels is Kernels.COMPILED else {}
        return largest_of([self.growth, *self._growths(range(RUNS, MORE_RUNS)), self._of_cancelled(), kernels])

    def exact_along(self, follow: Sequence[Tensors] | None) -> Trained | None:
        """The training in float64, with each step taken by these gradients."""
        try:
            found = self._train_exactly(in_type(self._run[0], EXACT), follow)
        except Exception:  # the model's code may raise anything: no float64 kernel, a check of the type
            return None
        is_alike = [
            math.isfinite(a) == math.isfinite(b) for a, b in zip(found.losses, self.trained.losses, strict=True)
        ]
        return found if all(is_alike) else None

    def exact_growth(self, exact: Trained, follow: Sequence[Tensors] | None) -> Growth:
        """The growth over a few runs in float64, `exact` among them: no coarser type has rounded in them."""
        found = []
        for n in range(RUNS):
            with RoundedScalars(SEED + n):
                other = self._train_exactly(nudged(in_type(self._run[0], EXACT), SEED + n, EXACT), follow)
            found.append(growth_between(exact, other))
        with RoundedScalars(SEED, elements=True):
            other = self._train_exactly(in_type(self._run[0], EXACT), follow)
        return largest_of([*found, _of_cancelled(exact, other)])

    def _train_exactly(self, model: Model, follow: Sequence[Tensors] | None) -> Trained:
        with computing_in(EXACT):
            return train(model, self.training, follow, self.trained.drawn)

    def _of_cancelled(self) -> Growth:
        """The growth of gradients that are sums of which nothing is left."""
        with RoundedScalars(SEED, elements=True):
            other = reference(self._run[0], self.training, self.follow)
        return _of_cancelled(self.trained, other)

    def _of_kernels(self) -> Growth:
        """The distance to the same training in torch.compile's kernels; nothing where that is not possible: they draw
        other random numbers."""
        if any(self.trained.drawn):
            return {}
        module = copy.deepcopy(self._run[0].module)
        module.compile(dynamic=False, backend=BACKEND)
        try:
            other = train(replace(self._run[0], module=module), self.training, self.follow, draws=False)
        except TorchDynamoException:
            return {}
        return growth_between(self.trained, other)

    def _growths(self, runs: range) -> Iterable[Growth]:
        """The growth of the runs of these numbers; run n always draws the same digits."""
        for n in runs:
            with RoundedScalars(SEED + n):
                other = train(nudged(self._run[0], SEED + n, self.precision), self.training, self.follow)
            yield growth_between(self.trained, other)


def _of_cancelled(single: Trained, other: Trained) -> Growth:
    """The growth of gradients that are sums of which nothing is left; `other` trained with the last digit of each
    element of every operator's result wrong.

    What is left of such a sum depends on its order, and other weights need not show that: 0.1 + 0.2 - 0.3 is 5.6e-17
    however often it is computed, and 0 or 2.8e-17 in other orders. Wrong addends move it by the rounding of their own
    size. A gradient that is no larger than this is zero in exact arithmetic, or too small to tell.
    """
    sizes = {gradient_of(n, name): _size(grad) for n, step in enumerate(single.grads) for name, grad in step.items()}
    found = growth_between(single, other)
    return {name: d for name, d in found.items() if name in sizes and CANCELLED * d >= sizes[name]}


def growth_between(single: Trained, other: Trained) -> Growth:
    """The distance of two runs. For weights the distance of their changes counts, because the runs start from different
    weights."""
    ours, theirs = (
        replace(run, weights={name: _change(run, name) for name in run.weights}).tensors() for run in (single, other)
    )
    return {name: _distance(tensor, theirs[name]) for name, tensor in ours.items() if name in theirs}


def _change(trained: Trained, name: str) -> torch.Tensor:
    """The change of a weight from the start of training to its end, float64."""
    return real_of(trained.weights[name]).double() - real_of(trained.start[name]).double()


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of two elements; infinite if one of theirs is not finite and ours is."""
    if not ours.numel():
        return 0.0
    ours, theirs = real_of(ours.detach()), real_of(theirs.detach())
    difference = (ours.double() - theirs.double()).abs()
    return float(torch.where(ours.isfinite(), difference.nan_to_num(nan=math.inf), 0.0).max())


def _size(tensor: torch.Tensor) -> float:
    """The largest finite absolute value."""
    sizes = real_of(tensor.detach()).double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(sizes.max()) if sizes.numel() else 0.0


def largest_of(found: Sequence[Growth]) -> Growth:
    """The larger growth of each tensor. A run that is not finite has failed, and counts only if all have."""
    names = dict.fromkeys(name for growth in found for name in growth)
    return {name: _largest(growth[name] for growth in found if name in growth) for name in names}


def _largest(distances: Iterable[float]) -> float:
    found = tuple(distances)
    return max((d for d in found if math.isfinite(d)), default=math.inf if found else 0.0)
