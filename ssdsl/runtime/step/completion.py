"""The completion of gradients: the steps from what backward leaves to what the optimizer needs, and the groups over
which weights, gradients and the optimizer's state are in parts."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from ..layout.portions import parts_in
from ..layout.regions import Run, Runs
from ..ranks.transport import PendingWork, Works
from ..ranks.world import Group


@dataclass(frozen=True)
class FlatCut:
    """The ranks of a group, each with its part of a flat tensor, in proportion to the `portions`.

    Collectives have parts of one size. Where they are unequal, each is padded to the largest: with portions 3, 3 and 2
    of 16 elements, an all_gather returns 18, of which the last 2 are left out.
    """

    group: Group
    portions: tuple[int, ...]

    @cached_property
    def is_equal(self) -> bool:
        """Whether all parts are of one size."""
        return len({*self.portions}) == 1

    def span(self, elements: int) -> Run:
        """The elements of this rank's part, [start, stop)."""
        before, own, total = self._own
        return elements * before // total, elements * (before + own) // total

    @cached_property
    def _own(self) -> tuple[int, int, int]:
        """The portions in front of this rank's, its own, and all."""
        index = self.group.index
        return sum(self.portions[:index]), self.portions[index], sum(self.portions)

    def parts(self, elements: int) -> Runs:
        """Those of all ranks' parts."""
        return tuple(run for runs in parts_in(self.portions, elements) for run in runs)

    def part_of(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part of a flat tensor: a view."""
        start, stop = self.span(flat.numel())
        return flat[start:stop]

    def whole_of(self, part: torch.Tensor) -> torch.Tensor:
        """A tensor for all parts, of which this is the rank's."""
        _, own, total = self._own
        return part.new_empty(part.numel() * total // own)

    def start_gather(self, whole: torch.Tensor, part: torch.Tensor) -> PendingWork:
        """Starts to fill a tensor with the parts of all ranks, one behind the other."""
        if self.is_equal:
            return self.group.start_all_gather(whole, part)
        parts = self.parts(whole.numel())
        padded = self._padded(part, 1)
        padded[: part.numel()] = part
        gathered = self._padded(part, self.group.size)

        def take_out() -> None:
            for (start, stop), found in zip(parts, gathered.chunk(self.group.size), strict=True):
                whole[start:stop] = found[: stop - start]

        return Works([self.group.start_all_gather(gathered, padded)], padded, take_out)

    def start_scatter(self, flat: torch.Tensor) -> tuple[torch.Tensor, PendingWork]:
        """Starts to sum a flat tensor; the result is this rank's part of the sum, there after the work's `wait`."""
        if self.is_equal:
            mine = flat.new_empty(flat.numel() // self.group.size)
            return mine, Works([self.group.start_reduce_scatter(mine, flat)], flat)
        parts = self.parts(flat.numel())
        own = self.part_of(flat)
        padded = self._padded(own, self.group.size)
        for (start, stop), room in zip(parts, padded.chunk(self.group.size), strict=True):
            room[: stop - start] = flat[start:stop]
        mine = self._padded(own, 1)
        return mine[: own.numel()], Works([self.group.start_reduce_scatter(mine, padded)], padded)

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The parts of all ranks, one behind the other."""
        whole = self.whole_of(part)
        self.start_gather(whole, part).wait()
        return whole

    def _padded(self, part: torch.Tensor, parts: int) -> torch.Tensor:
        """Zeros for so many of the largest parts, where this is the rank's own."""
        return part.new_zeros(parts * part.numel() * max(self.portions) // self.portions[self.group.index])


@dataclass(frozen=True)
class CompletionStep:
    """A step from the gradient after backward to the one that the optimizer needs.

    For a flat gradient [n]: `all_reduce` gives the sum over the group, [n]; `reduce_scatter` this rank's part of the
    sum; `narrow` this rank's part of a gradient that is equal on all ranks; `all_gather` joins the ranks' parts. Equal
    parts are [n / ranks].
    """

    kind: str
    cut: FlatCut

    @property
    def group(self) -> Group:
        """The ranks that take part."""
        return self.cut.group

    def start(self, flat: torch.Tensor) -> tuple[torch.Tensor, PendingWork]:
        """Starts the step. Its result is there after the work's `wait`; until then `flat` must not change."""
        match self.kind:
            case "all_reduce":
                return flat, self.group.start_all_reduce(flat)
            case "reduce_scatter":
                return self.cut.start_scatter(flat)
            case "all_gather":
                whole = self.cut.whole_of(flat)
                return whole, Works([self.cut.start_gather(whole, flat)], flat)
            case _:
                return self.cut.part_of(flat).clone(), Works(())

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        result, work = self.start(flat)
        work.wait()
        return result


Steps = tuple[CompletionStep, ...]


class GradientCompletion(NamedTuple):
    """The steps that complete a gradient: in the backward of weights that were gathered, after each backward that adds
    to the gradient, and after the last one."""

    in_backward: Steps = ()
    each: Steps = ()
    once: Steps = ()


class Levels(NamedTuple):
    """How weights are sharded between steps, gradients are cut further, and the optimizer's state is cut further; None
    if a state has the parts of the one before."""

    weights: FlatCut | None = None
    grads: FlatCut | None = None
    optimizer: FlatCut | None = None

    @property
    def updated(self) -> list[FlatCut]:
        """The cuts of the held weights into the ranks' shards, the outermost first."""
        return [cut for cut in (self.grads, self.optimizer) if cut is not None]

    @property
    def cuts(self) -> list[FlatCut]:
        """The cuts of all weights into the ranks' shards, the outermost first."""
        return [*([self.weights] if self.weights is not None else []), *self.updated]
