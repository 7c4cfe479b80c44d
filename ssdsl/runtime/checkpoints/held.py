"""A checkpoint that is never written: what ranks hold under one plan, to be read under another one.

`restore` reads it as it reads one from the disk. A rank copies the elements that it has already, and gets each of the
others once, from the rank that owns it:

| a weight [4, 2] | rank 0 has | rank 1 has | under the new plan | travels |
|---|---|---|---|---|
| copies, then rows | all | all | [0:2], [2:4] | nothing |
| rows, then copies | [0:2] | [2:4] | all, all | [2:4] to rank 0, [0:2] to rank 1 |
| columns, then rows | [:, 0] | [:, 1] | [0:2], [2:4] | [0:2, 1] to rank 0, [2:4, 0] to rank 1 |
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata

from ..ranks.control import Control
from ..ranks.parcels import exchange_tensors
from ..ranks.world import Group, World
from ..step.parts import LocalTensor
from .content import Box, Content, Ints, Path, boxes_of

Boxes = list[tuple[Box, torch.Tensor]]  # each with its elements


class HeldCheckpoint:
    """The content of all ranks. They make one together, and call `read` together. `moved_bytes` are those that this
    rank has got from others."""

    folder = "the plan before"

    def __init__(self, content: Content, world: World) -> None:
        self.facts, self.rank, self.control = content.facts, world.rank, Control(world.transport)
        group = world.new_group("held", list(range(world.transport.size)))
        assert group is not None, "all ranks are in it"
        self.group: Group = group
        self.moved_bytes = 0
        self._mine: dict[Path, Boxes] = {path: [*boxes_of(held)] for path, held in content.tensors.items()}
        self._numbers: dict[Path, Any] = {}
        self.tensors: dict[Path, TensorStorageMetadata] = {}
        self._owned: dict[Path, dict[int, list[Box]]] = {}  # by rank
        told = {
            "tensors": [
                (path, held.piece.shape, _word(held.tensor.dtype), _told(self._mine[path]) if held.owns else [])
                for path, held in content.tensors.items()
            ],
            "numbers": [(path, *_number(value)) for path, value in content.scalars.items()],
        }
        for rank, text in enumerate(self.control.all_gather(json.dumps(told).encode())):
            its = json.loads(text)
            for path, shape, dtype, boxes in its["tensors"]:
                self._note(tuple(path), shape, dtype)
                if boxes:
                    self._owned.setdefault(tuple(path), {})[rank] = [Box(tuple(a), tuple(n)) for a, n in boxes]
            for path, dtype, value in its["numbers"]:
                self._note(tuple(path), [], dtype)
                self._numbers[tuple(path)] = value

    def _note(self, path: Path, shape: Sequence[int], dtype: str) -> None:
        properties = TensorProperties(getattr(torch, dtype))
        self.tensors[path] = TensorStorageMetadata(properties, torch.Size(shape), [])

    def under(self, *path: str) -> dict[Path, TensorStorageMetadata]:
        """The tensors whose paths have this prefix, by the rest of their paths."""
        return {p[len(path) :]: t for p, t in self.tensors.items() if p[: len(path)] == path}

    @torch.no_grad()
    def read(self, wanted: Mapping[Path, LocalTensor]) -> None:
        """Fills each wanted tensor, converted to its own type."""
        mine = {path: [*boxes_of(held)] for path, held in wanted.items() if path not in self._numbers}
        for path, held in wanted.items():
            if path in self._numbers:
                held.tensor.fill_(self._numbers[path])
        lacking = {path: [*self._lacking(path, boxes)] for path, boxes in mine.items()}
        told = [(path, _told(boxes)) for path, boxes in lacking.items() if boxes]
        asked = [json.loads(text) for text in self.control.all_gather(json.dumps(told).encode())]
        sends = {rank: self._of(rank, found) for rank, found in enumerate(asked) if rank != self.rank}
        gets: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}  # what comes, and where it goes
        for path, boxes in lacking.items():
            for box, tensor in boxes:
                for rank, inner in self._owners(path, box):
                    there = inner.within(tensor, box.offsets)
                    dtype = self.tensors[path].properties.dtype
                    comes = there if there.dtype == dtype else torch.empty_like(there, dtype=dtype)
                    gets.setdefault(rank, []).append((comes, there))
        room = {rank: [comes for comes, _ in found] for rank, found in gets.items()}
        self.moved_bytes += exchange_tensors(self.group, {r: found for r, found in sends.items() if found}, room)
        for comes, there in (pair for found in gets.values() for pair in found):
            there.copy_(comes)

    def _lacking(self, path: Path, boxes: Boxes) -> Iterator[tuple[Box, torch.Tensor]]:
        """Copies the elements of a wanted tensor that this rank has, and yields the boxes of the others."""
        left = boxes
        for own, source in self._mine.get(path, ()):
            further: Boxes = []
            for box, tensor in left:
                inner = both(box, own)
                if inner is None:
                    further.append((box, tensor))
                    continue
                inner.within(tensor, box.offsets).copy_(inner.within(source, own.offsets))
                further += [(rest, rest.within(tensor, box.offsets)) for rest in without(box, inner)]
            left = further
        yield from left

    def _owners(self, path: Path, box: Box) -> Iterator[tuple[int, Box]]:
        """Yields the parts of a box that ranks own, with the rank, in one order on all ranks."""
        for rank, boxes in sorted(self._owned.get(path, {}).items()):
            for own in boxes:
                if (inner := both(box, own)) is not None:
                    yield rank, inner

    def _of(self, rank: int, asked: Any) -> list[torch.Tensor]:
        """What this rank sends another one, of the boxes that it asks for."""
        found = []
        for words, boxes in asked:
            path = tuple(words)
            owns = self.rank in self._owned.get(path, {})
            for offsets, sizes in boxes if owns else ():
                for own, source in self._mine[path]:
                    if (inner := both(Box(tuple(offsets), tuple(sizes)), own)) is not None:
                        found.append(inner.within(source, own.offsets))
        return found


def both(a: Box, b: Box) -> Box | None:
    """The elements that two boxes share; None if there are none.

    >>> both(Box((0, 2), (4, 3)), Box((1, 0), (2, 4)))
    Box(offsets=(1, 2), sizes=(2, 2))
    """
    starts = tuple(map(max, a.offsets, b.offsets))
    ends = (min(p + n, q + m) for p, n, q, m in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True))
    sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return Box(starts, sizes) if all(n > 0 for n in sizes) else None


def without(box: Box, inner: Box) -> Iterator[Box]:
    """Yields boxes of the elements that are not in an inner box: in front of it and behind it, axis by axis.

    >>> [(b.offsets, b.sizes) for b in without(Box((0, 0), (4, 4)), Box((1, 0), (2, 3)))]
    [((0, 0), (1, 4)), ((3, 0), (1, 4)), ((1, 3), (2, 1))]
    """
    offsets, sizes = [*box.offsets], [*box.sizes]
    for dim, (start, n) in enumerate(zip(inner.offsets, inner.sizes, strict=True)):
        end = offsets[dim] + sizes[dim]
        for first, stop in ((offsets[dim], start), (start + n, end)):
            if first < stop:
                yield Box(_with(offsets, dim, first), _with(sizes, dim, stop - first))
        offsets[dim], sizes[dim] = start, n


def _with(values: Sequence[int], at: int, value: int) -> Ints:
    return (*values[:at], value, *values[at + 1 :])


def _told(boxes: Boxes) -> list[tuple[Ints, Ints]]:
    return [(box.offsets, box.sizes) for box, _ in boxes]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _number(value: Any) -> tuple[str, Any]:
    """A number's type, and its value."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return _word(tensor.dtype), tensor.item()
