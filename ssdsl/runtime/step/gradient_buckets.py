"""Gradients of a flat parameter: the bucket in which backward leaves them, and the reduction that completes them."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..ranks.transport import PendingWork, Works
from .completion import Steps

if TYPE_CHECKING:
    from .flat_params import FlatWeights


class Reduction:
    """Steps that complete a gradient, from their start on: those up to the first in which ranks communicate run in the
    background; `wait` waits for them, and runs the others."""

    def __init__(self, flat: "FlatWeights", steps: Steps, gradient: torch.Tensor) -> None:
        self.flat = flat
        number = next((n for n, step in enumerate(steps) if step.kind != "narrow"), len(steps))
        self.gradient, self._rest = flat.run(steps[:number], gradient), steps[number + 1 :]
        self._sent = self.gradient  # until it has arrived
        self._started: PendingWork = Works(())
        for step in steps[number : number + 1]:
            with flat.noted(step.group):
                self.gradient, self._started = step.start(self._sent)

    def wait(self) -> torch.Tensor:
        """The completed gradient."""
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
        self._missing: set[str] = set()  # weights whose gradients are to come before the bucket is full
        self._when_full: Callable[[], None] | None = None
        own = weakref.ref(self)
        for name, parameter in flat.parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(_put, own, name))  # type: ignore[no-untyped-call]

    @property
    def is_full(self) -> bool:
        """Whether each weight has got the gradient that was expected."""
        return not self._missing

    def expect(self, when_full: Callable[[], None] | None) -> None:
        """Expects one more gradient of each weight. `when_full` is called as soon as all of them have come; with None
        nothing is expected any more."""
        self._missing = {*self.flat.parameters} if when_full is not None else set()
        self._when_full = when_full

    def came(self, name: str, parameter: torch.Tensor) -> None:
        """Takes a gradient that autograd has added to a weight's."""
        self.moved(name, parameter)
        self._missing.discard(name)
        if self.is_full and self._when_full is not None:
            self._when_full()

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


@contextmanager
def filling(flats: Sequence["FlatWeights"], reduce: Callable[["FlatWeights"], None]) -> Iterator[None]:
    """A context for a backward that computes gradients of all weights of some flat parameters. `reduce` is called for
    each as soon as its bucket is full, and it has been called for those before it, so that all ranks start them in one
    order; for the others at the end of backward."""
    left = deque(flats)

    def start_full() -> None:
        while left and left[0].bucket.is_full:
            reduce(left.popleft())

    for flat in flats:
        flat.bucket.expect(start_full)
    try:
        yield
        while left:
            reduce(left.popleft())
    finally:
        for flat in flats:
            flat.bucket.expect(None)


def _put(bucket: "weakref.ref[Bucket]", name: str, parameter: torch.Tensor) -> None:
    """A parameter's hook: it does not keep the bucket, as Python's collector sees no cycle that leads through torch."""
    if (alive := bucket()) is not None:
        alive.came(name, parameter)
