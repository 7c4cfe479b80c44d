"""Makes again in backward what autograd would otherwise keep: gathered weights of ZeRO-3, gathered values with
`again=True`, and results of recomputed layers.

While a forward runs, the rank knows which memory can be made again, and from what. Saved-tensor hooks see each tensor
that autograd saves: for such memory the source is saved instead. Backward makes it again when it reads it, once until
the source frees it. Views of such memory are treated alike, because they share its storage.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class MemorySource(Protocol):
    """A source from which a tensor was gathered or computed."""

    def made_again(self) -> torch.Tensor:
        """The same numbers, at the same places of memory; the same tensor until it is freed."""
        ...


# what autograd keeps: the tensor itself, or its source with the dtype, size, strides and offset of the view
Kept = torch.Tensor | tuple[MemorySource, torch.dtype, torch.Size, tuple[int, ...], int]


class Gathered:
    """The memory of a forward that backward makes again, and its sources. It identifies memory without keeping it
    alive."""

    def __init__(self) -> None:
        self._sources: dict[StorageWeakRef, MemorySource] = {}
        self._saving = 0  # the number of open contexts of `saving`

    def note(self, x: torch.Tensor, source: MemorySource) -> None:
        """Records the source of a tensor, until the forward ends."""
        if self._saving:
            self._sources[_memory(x)] = source

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A context for a forward in which autograd keeps no memory that has a source."""
        self._saving += 1
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.packed, unpacked):
                yield
        finally:
            self._saving -= 1
            if not self._saving:
                self._sources.clear()

    def packed(self, x: torch.Tensor) -> Kept:
        """What to keep of a tensor: its source if it has one."""
        source = self._sources.get(_memory(x)) if self._sources else None
        return x if source is None else (source, x.dtype, x.size(), x.stride(), int(x.storage_offset()))


def _memory(x: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def unpacked(kept: Kept) -> torch.Tensor:
    """The tensor of which this was kept."""
    if isinstance(kept, torch.Tensor):
        return kept
    source, dtype, size, stride, offset = kept
    whole = source.made_again()
    if whole.dtype == dtype:
        return whole.as_strided(size, stride, offset)
    # a view of another dtype, such as complex numbers of pairs of real ones
    return whole.new_empty(0, dtype=dtype).set_(whole.untyped_storage(), offset, size, stride)
