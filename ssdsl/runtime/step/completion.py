"""The completion of gradients: the steps from what backward leaves to what the optimizer needs, and the groups over
which weights, gradients and the optimizer's state are in parts."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..ranks.transport import PendingWork, Works
from ..ranks.world import Group


@dataclass(frozen=True)
class CompletionStep:
    """A step from the gradient after backward to the one that the optimizer needs.

    For a flat gradient [n]: `all_reduce` gives the sum over the group, [n]; `reduce_scatter` this rank's part of the
    sum, [n / ranks]; `narrow` this rank's part of a gradient that is equal on all ranks, [n / ranks]; `all_gather`
    joins the ranks' parts, [n * ranks].
    """

    kind: str
    group: Group

    def start(self, flat: torch.Tensor) -> tuple[torch.Tensor, PendingWork]:
        """Starts the step. Its result is there after the work's `wait`; until then `flat` must not change."""
        match self.kind:
            case "all_reduce":
                return flat, self.group.start_all_reduce(flat)
            case "reduce_scatter":
                mine = flat.new_empty(flat.numel() // self.group.size)
                return mine, Works([self.group.start_reduce_scatter(mine, flat)], flat)
            case "all_gather":
                whole = flat.new_empty(flat.numel() * self.group.size)
                return whole, Works([self.group.start_all_gather(whole, flat)], flat)
            case _:
                return part_of(flat, self.group).clone(), Works(())

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        result, work = self.start(flat)
        work.wait()
        return result


def part_of(flat: torch.Tensor, group: Group) -> torch.Tensor:
    """This rank's part of a flat tensor: a view."""
    return flat.chunk(group.size)[group.index]


def gathered(part: torch.Tensor, group: Group) -> torch.Tensor:
    """The parts of all ranks of a group, one behind the other."""
    whole = part.new_empty(part.numel() * group.size)
    group.all_gather(whole, part)
    return whole


Steps = tuple[CompletionStep, ...]


class GradientCompletion(NamedTuple):
    """The steps that complete a gradient: in the backward of weights that were gathered, after each backward that adds
    to the gradient, and after the last one."""

    in_backward: Steps = ()
    each: Steps = ()
    once: Steps = ()


class Levels(NamedTuple):
    """The groups over which weights are sharded between steps, over which gradients are cut further, and over which the
    optimizer's state is cut further; None if a state has the parts of the one before."""

    weights: Group | None = None
    grads: Group | None = None
    optimizer: Group | None = None

    @property
    def updated(self) -> list[Group]:
        """The groups that cut the held weights into the ranks' shards, the outermost first."""
        return [group for group in (self.grads, self.optimizer) if group is not None]

    @property
    def groups(self) -> list[Group]:
        """The groups that cut all weights into the ranks' shards, the outermost first."""
        return [*([self.weights] if self.weights is not None else []), *self.updated]
