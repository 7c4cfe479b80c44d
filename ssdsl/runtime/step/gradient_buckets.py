"""Gradients of a flat parameter: the bucket in which backward leaves them, and the reduction that completes them."""

import weakref
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..ranks.transport import PendingWork

if TYPE_CHECKING:
    from .flat_params import FlatWeights


class Reduction:
    """The steps that complete a gradient after the last backward, from their start on. An all_reduce in the background
    is waited for, and what comes after it runs, in `wait`."""

    def __init__(self, flat: "FlatWeights", gradient: torch.Tensor) -> None:
        self.flat = flat
        steps, number = flat.completion.once, len(flat.completion.once)
        if flat.completion.is_background:
            number = next(n for n, step in enumerate(steps) if step.kind == "all_reduce")
        self.gradient, self._rest = flat.run(steps[:number], gradient), steps[number + 1 :]
        self._started: PendingWork | None = None
        if number < len(steps):
            with flat.noted(steps[number].group):
                self._started = steps[number].group.start_all_reduce(self.gradient)

    def wait(self) -> torch.Tensor:
        """The completed gradient."""
        if self._started is not None:
            self._started.wait()
        return self.flat.run(self._rest, self.gradient)


class Bucket:
    """The concatenated gradients of a flat parameter, [elements]: each weight's `grad` is a view of it.

    Backward fills it, as in DistributedDataParallel with `gradient_as_bucket_view`: the first gradient of a weight
    moves into its slot as soon as autograd has computed it, and later ones are added there, so the bucket is reduced
    without a copy. It is allocated when the first gradient comes. Without a completion, gradients stay where autograd
    leaves them.
    """

    def __init__(self, flat: "FlatWeights") -> None:
        self.flat = flat
        self._whole: torch.Tensor | None = None
        self._slots: dict[str, torch.Tensor] = {}
        own = weakref.ref(self)
        for name, parameter in flat.parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(_put, own, name))  # type: ignore[no-untyped-call]

    def moved(self, name: str, parameter: torch.Tensor) -> None:
        """Moves a gradient that was computed into its slot."""
        if not any(self.flat.completion) or parameter.grad is None:
            return
        if self._whole is None:
            self._hold(parameter.new_empty(self.flat.elements))
        slot = self._slots[name]
        if parameter.grad is not slot:
            parameter.grad = slot.copy_(parameter.grad)

    def filled(self) -> torch.Tensor:
        """The whole bucket, with zeros for weights without gradient."""
        for name, parameter in self.flat.parameters.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.moved(name, parameter)  # the second half of a split backward sets gradients without a hook
        assert self._whole is not None
        self._whole[self.flat.used :].zero_()
        return self._whole

    def _hold(self, whole: torch.Tensor) -> None:
        self._whole, self._slots = whole, self.flat.views(whole)

    def put(self, whole: torch.Tensor) -> None:
        """Makes the gradients views of another tensor [elements]."""
        if whole is not self._whole:
            self._hold(whole)
            for name, parameter in self.flat.parameters.items():
                parameter.grad = self._slots[name]

    def drop(self) -> None:
        """Frees the gradients."""
        for parameter in self.flat.parameters.values():
            parameter.grad = None
        self._whole, self._slots = None, {}


def _put(bucket: "weakref.ref[Bucket]", name: str, parameter: torch.Tensor) -> None:
    """A parameter's hook: it does not keep the bucket, as Python's collector sees no cycle that leads through torch."""
    if (alive := bucket()) is not None:
        alive.moved(name, parameter)
