"""Runs one call of an operator on any tensors in place of its own, forward and backward."""

import contextlib
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.preserve import quiet
from ssdsl.model.graph import replace_refs
from ssdsl.record import Record

Tensors = tuple[torch.Tensor, ...]
LIMIT_S = 30.0  # of processor time, for all experiments with one call
NO_BACKWARD = re.compile(r"derivative .*not implemented|no autograd formula|not differentiable|does not require grad")


class Fails(Exception):
    """The call cannot be run on these tensors; the text says why."""


class Unsteady(Exception):
    """The call gives other results when it is repeated."""


class NoBackward(Fails):
    """An input of the call has no gradient, and torch says so."""


class TooLong(Exception):
    """The experiments with this call have used up their time."""


class Outcome(Record):
    """The results, whether a gradient flows through each, and the inputs' gradients, None if there is none."""

    outputs: Tensors
    flows: tuple[bool, ...]
    gradients: tuple[torch.Tensor | None, ...]


@dataclass(slots=True)
class Trial:
    """A call, and the time at which the experiments with it began. `careful`: integers stay as small as possible."""

    call: CapturedCall
    careful: bool = False
    limit_s: float = LIMIT_S
    started: float = field(default_factory=time.process_time)

    def forward(self, given: Sequence[torch.Tensor]) -> Tensors:
        """The call's results that are tensors. Raises Fails, and TooLong."""
        if time.process_time() - self.started > self.limit_s:
            raise TooLong
        rest = iter(given)
        args, kwargs = replace_refs((self.call.args, self.call.kwargs), lambda _: next(rest), _on_cpu)
        try:
            result = self.call.target(*args, **kwargs)
        except Exception as error:  # an operator may raise anything
            raise _failure(error) from error
        results = result if isinstance(result, (tuple, list)) else (result,)
        return tuple(r for r in results if isinstance(r, torch.Tensor))

    def run(
        self, given: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor], learning: Collection[int]
    ) -> Outcome:
        """Runs forward and, from `upstream` gradients of the results, backward to the `learning` inputs.

        Raises Fails, and TooLong.
        """
        leaves = [x.detach().requires_grad_(i in learning) for i, x in enumerate(given)]
        outputs = self.forward(leaves)
        flows = tuple(y.requires_grad for y in outputs)
        gradients: list[torch.Tensor | None] = [None] * len(leaves)
        if any(flows):
            wanted = [i for i, x in enumerate(leaves) if x.requires_grad]
            try:
                found = torch.autograd.grad(
                    [y for y, f in zip(outputs, flows, strict=True) if f],
                    [leaves[i] for i in wanted],
                    [g for g, f in zip(upstream, flows, strict=True) if f],
                    allow_unused=True,
                )
            except Exception as error:  # a backward may raise anything
                raise _failure(error) from error
            for i, gradient in zip(wanted, found, strict=True):
                gradients[i] = gradient
        return Outcome(tuple(y.detach() for y in outputs), flows, tuple(gradients))


def _failure(error: Exception) -> Fails:
    lines = str(error).strip().splitlines()
    kind = NoBackward if NO_BACKWARD.search(str(error)) else Fails
    return kind(f"{type(error).__name__}: {lines[0] if lines else ''}")


def _on_cpu(item: Any) -> Any:
    return torch.device("cpu") if isinstance(item, torch.device) else item


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """A context in which experiments have no side effects: on the random state, prints and warnings."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad(), quiet():
        torch.manual_seed(0)
        yield
