"""Which storages operators have made that are still alive; the allocator only knows how many bytes."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """A context that records the storages that operators make: `made` maps the addresses of live storages to their
    bytes.

    A storage counts until its last reference goes, in whatever thread. Workspace that an operator allocates and frees
    inside itself is not counted, nor is what a compiled kernel does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, int] = {}
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self.made:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()

        def released(_: object) -> None:
            del self._held[address], self.made[address]

        self._held[address] = weakref.ref(storage, released)
        self.made[address] = size


def _storages(tree: object) -> Iterator[torch.UntypedStorage]:
    return (t.untyped_storage() for t in tree_leaves(tree) if isinstance(t, torch.Tensor))
