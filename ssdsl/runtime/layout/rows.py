"""All-to-all of rows that are sorted by their experts.

The lengths of the runs are known only at run time (`count_rows`). Both ends of an `all_to_all` know them from the
counts, which were sent before as an ordinary tensor.
"""

from dataclasses import dataclass

import torch

from ..ranks.world import Group
from .cut import split_blocks


@dataclass(frozen=True, slots=True)
class rows_to_all:
    """A ragged `all_to_all` along the first axis, of runs of rows: `before` are the lengths of this rank's runs,
    `after` those of the received runs. The split digits lie inside `source` and `target` outer blocks of runs."""

    group: Group
    source: int
    target: int
    before: torch.Tensor
    after: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        n = self.group.size
        leaving = _numbers(self.before, self.target, n)  # for each rank the runs that it receives
        arriving = _numbers(self.after, self.source, n)  # for each rank the runs that it sends
        rows = torch.stack([self.before[leaving].sum(1), self.after[arriving].sum(1)]).tolist()
        parts = _in_order(x, self.before, leaving.flatten()) if self.target > 1 else x.contiguous()
        received = x.new_empty(sum(rows[1]), *x.shape[1:])
        self.group.all_to_all(received, parts, (rows[1], rows[0]))
        if self.source == 1:
            return received
        order = arriving.flatten()
        return _in_order(received, self.after[order], order.argsort())


def _numbers(runs: torch.Tensor, outer: int, count: int) -> torch.Tensor:
    """For each value of a digit, the numbers of the runs that have it, in order."""
    return split_blocks(torch.arange(runs.shape[0], device=runs.device), 0, outer, count)


def _in_order(x: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Permutes runs of these lengths.

    >>> _in_order(torch.arange(6), torch.tensor([1, 2, 3]), torch.tensor([2, 0, 1])).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    starts, sizes = (lengths.cumsum(0) - lengths)[order], lengths[order]
    here = torch.arange(x.shape[0], device=x.device)
    return x.index_select(0, here + (starts - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes))
