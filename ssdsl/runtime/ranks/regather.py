"""Makes again in backward what autograd would otherwise keep: gathered weights of ZeRO-3, gathered values with
`again=True`, and results of recomputed layers; and brings back what lies on the host in between.

While a forward runs, the rank knows which memory can be made again, and from what. Saved-tensor hooks see each tensor
that autograd saves: for such memory the source is saved instead. Backward makes it again when it reads it, once until
the source frees it. Views of such memory are treated alike, because they share its storage.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..link.host import HostLink


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
        self._hosting = 0  # the number of open contexts of `on_host`
        self._copies: dict[tuple[StorageWeakRef, int], HostCopy] = {}  # by memory, and the version of what it held
        self._stays: Callable[[], Iterable[torch.Tensor]] | None = None  # what the device has anyway
        self._there: set[StorageWeakRef] = set()

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

    @contextmanager
    def beside(self, stays: Callable[[], Iterable[torch.Tensor]]) -> Iterator[None]:
        """A context for a forward of a device that has these tensors anyway: they need no copy on the host."""
        self._stays = stays
        try:
            yield
        finally:
            self._stays = None

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """A context for a part of a forward of which autograd keeps copies on the host."""
        if not self._hosting:
            self._there = {_memory(x) for x in self._stays()} if self._stays is not None else set()
        self._hosting += 1
        try:
            with self.saving():
                yield
        finally:
            self._hosting -= 1
            if not self._hosting:
                self._copies.clear()
                self._there = set()

    def packed(self, x: torch.Tensor) -> Kept:
        """What to keep of a tensor: its source if it has one, or a copy on the host."""
        source: MemorySource | None = self._sources.get(_memory(x)) if self._sources else None
        if source is None and self._hosting and _memory(x) not in self._there:
            key = _memory(x), x._version
            if key not in self._copies:
                self._copies[key] = HostCopy(x)
            source = self._copies[key]
        return x if source is None else (source, x.dtype, x.size(), x.stride(), int(x.storage_offset()))


class HostCopy:
    """A copy on the host of all the memory that a tensor lies in. What backward reads comes back, once for all of its
    readers at a time."""

    def __init__(self, x: torch.Tensor) -> None:
        whole = _whole(x)
        self.device = x.device
        self._back: weakref.ref[torch.Tensor] | None = None
        self.copied = torch.empty_like(whole, device="cpu", pin_memory=x.is_cuda)
        with HostLink(whole.nbytes):
            self.copied.copy_(whole, non_blocking=True)

    def made_again(self) -> torch.Tensor:
        """The elements on the device."""
        back = self._back() if self._back is not None else None
        if back is None:
            with HostLink(self.copied.nbytes):
                back = self.copied.to(self.device, non_blocking=True)
            self._back = weakref.ref(back)
        return back


def _whole(x: torch.Tensor) -> torch.Tensor:
    """All elements of the memory that a tensor lies in."""
    storage = x.untyped_storage()
    with torch.no_grad():
        whole: torch.Tensor = x.detach().new_empty(0).set_(storage, 0, (storage.nbytes() // x.element_size(),), (1,))
    return whole


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
