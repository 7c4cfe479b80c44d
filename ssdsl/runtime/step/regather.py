"""Gathers again in backward what autograd would otherwise keep: weights of ZeRO-3, and values with `again=True`.

While a forward runs, the rank knows which memory was gathered, and from what. Saved-tensor hooks see each tensor that
autograd saves: for gathered memory the source is saved instead. Backward gathers it again when it reads it, once until
the source frees it. Views of gathered memory are treated alike, because they share its storage.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class GatheredFrom(Protocol):
    """A source from which a tensor was gathered."""

    def gathered_again(self) -> torch.Tensor:
        """The same numbers, at the same places of memory; the same tensor until it is freed."""
        ...


# what autograd keeps: the tensor itself, or its source with the dtype, size, strides and offset of the view
Kept = torch.Tensor | tuple[GatheredFrom, torch.dtype, torch.Size, tuple[int, ...], int]


class Gathered:
    """The gathered memory of a forward, and its sources. It identifies memory without keeping it alive."""

    def __init__(self) -> None:
        self._sources: dict[StorageWeakRef, GatheredFrom] = {}
        self._saving = 0  # the number of open contexts of `saving`

    def note(self, x: torch.Tensor, source: GatheredFrom) -> None:
        """Records the source of a gathered tensor, until the forward ends."""
        if self._saving:
            self._sources[_memory(x)] = source

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A context for a forward in which autograd keeps no gathered memory."""
        self._saving += 1
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            self._saving -= 1
            if not self._saving:
                self._sources.clear()

    def _pack(self, x: torch.Tensor) -> Kept:
        source = self._sources.get(_memory(x)) if self._sources else None
        return x if source is None else (source, x.dtype, x.size(), x.stride(), int(x.storage_offset()))


def _memory(x: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def _unpack(kept: Kept) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    source, dtype, size, stride, offset = kept
    whole = source.gathered_again()
    if whole.dtype == dtype:
        return whole.as_strided(size, stride, offset)
    # a view of another dtype, such as complex numbers of pairs of real ones
    return whole.new_empty(0, dtype=dtype).set_(whole.untyped_storage(), offset, size, stride)
