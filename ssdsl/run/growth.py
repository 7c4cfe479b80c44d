"""How much the smallest error grows: the single device again, with the last digit of weights, inputs and scalars wrong.

No operator is exact, so each passes on an error of about one unit of its type, and the ones behind it make that larger
or smaller. How much of it reaches a gradient depends on the model, and is measured here rather than guessed. A run with
other last digits also rounds otherwise in every operator, so that it shows the noise of sums that cancel (the gradient
of attention's key bias, or of a bias before batch norm, is nothing else).

One run is too noisy a measure of a single number, such as a loss: four draws of a normal error that stay all below a
tenth of its deviation are rare (1 in 20 000), one is not (1 in 12).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssdsl.model.source import Model
from ssdsl.run.launch import Training
from ssdsl.run.nudge import RoundedScalars, nudged, precision
from ssdsl.run.reference import Tensors, Trained, reference

SEED = 20_001  # of the first run; a seed that no one would give to a model


@dataclass(frozen=True, slots=True)
class Growth:
    """How far runs with other last digits are from the single device's, at most: a number for each tensor."""

    losses: tuple[float, ...]
    grads: tuple[dict[str, float], ...]
    weights: dict[str, float]
    buffers: dict[str, float]


def measured_growth(
    model: Model, training: Training, single: Trained, follow: Sequence[Tensors] | None, runs: range
) -> Growth:
    """The growth over the runs of these numbers; run n draws the same digits whenever it is asked for."""
    unit = precision(model)
    return largest_of([growth_between(single, _another(model, training, follow, SEED + n, unit)) for n in runs])


def _another(
    model: Model, training: Training, follow: Sequence[Tensors] | None, seed: int, unit: torch.dtype
) -> Trained:
    """A run with other last digits."""
    with RoundedScalars(seed):
        return reference(nudged(model, seed, unit), training, follow)


def growth_between(single: Trained, other: Trained) -> Growth:
    """How far one run is from the other. Of weights, how far they moved counts: they did not start in one place."""
    losses = tuple(
        _distance(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        for a, b in zip(single.losses, other.losses, strict=True)
    )
    grads = tuple(
        {name: _distance(grad, theirs[name]) for name, grad in ours.items() if name in theirs}
        for ours, theirs in zip(single.grads, other.grads, strict=True)
    )
    weights = {name: _distance(_move(single, name), _move(other, name)) for name in single.weights}
    buffers = {name: _distance(buffer, other.buffers[name]) for name, buffer in single.buffers.items()}
    return Growth(losses, grads, weights, buffers)


def _move(trained: Trained, name: str) -> torch.Tensor:
    return trained.weights[name].double() - trained.start[name].double()


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of two elements that are both finite."""
    if not ours.numel():
        return 0.0
    difference = ours.detach().double() - theirs.detach().double()
    return float(difference.abs().nan_to_num(nan=0.0, posinf=0.0).max())


def largest_of(found: Sequence[Growth]) -> Growth:
    """The larger growth, tensor by tensor."""

    def most(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
        names = dict.fromkeys(name for values in dicts for name in values)
        return {name: max(values.get(name, 0.0) for values in dicts) for name in names}

    losses = tuple(max(step) for step in zip(*(g.losses for g in found), strict=True))
    grads = tuple(most(step) for step in zip(*(g.grads for g in found), strict=True))
    return Growth(losses, grads, most([g.weights for g in found]), most([g.buffers for g in found]))
