"""Rows that lie with their experts, on their way from device to device.

The lengths of their runs are known when the program runs (`count_rows`). An `all_to_all` moves runs; both ends know how
many rows these have from the counts, which have travelled before as any tensor does.
"""

from dataclasses import dataclass

import torch

from ..ranks.world import Group
from .cut import split_blocks


@dataclass(frozen=True, slots=True)
class rows_to_all:
    """As `all_to_all` along the first axis, of runs of rows: `before` are the lengths of those that a rank has, `after`
    of those that it gets. The digits of either lie behind so many blocks of runs, `source` and `target`."""

    group: Group
    source: int
    target: int
    before: torch.Tensor
    after: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        n = self.group.size
        leaving = _numbers(self.before, self.target, n)  # for each rank the runs that it gets
        arriving = _numbers(self.after, self.source, n)  # of each rank the runs that it sends
        rows = torch.stack([self.before[leaving].sum(1), self.after[arriving].sum(1)]).tolist()
        parts = _in_order(x, self.before, leaving.flatten()) if self.target > 1 else x.contiguous()
        received = x.new_empty(sum(rows[1]), *x.shape[1:])
        self.group.all_to_all(received, parts, (rows[1], rows[0]))
        if self.source == 1:
            return received
        order = arriving.flatten()
        return _in_order(received, self.after[order], order.argsort())


def _numbers(runs: torch.Tensor, outer: int, count: int) -> torch.Tensor:
    """For each value of a digit the numbers of the runs that have it, in their order."""
    return split_blocks(torch.arange(runs.shape[0], device=runs.device), 0, outer, count)


def _in_order(x: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Runs of these lengths in another order.

    >>> _in_order(torch.arange(6), torch.tensor([1, 2, 3]), torch.tensor([2, 0, 1])).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    starts, sizes = (lengths.cumsum(0) - lengths)[order], lengths[order]
    here = torch.arange(x.shape[0], device=x.device)
    return x.index_select(0, here + (starts - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes))
