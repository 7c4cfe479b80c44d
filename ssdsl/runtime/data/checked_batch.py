"""A batch as a loader yields it: to a loop it is the global batch, and a rank has loaded the parts that it needs."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

from ..errors import EngineError
from ..layout.cut import elements_at
from .batch import Tensors, kind, text
from .batch_spec import BatchSpec


class CheckedBatch(MutableMapping[str, torch.Tensor]):
    """A global batch, already checked on all ranks: a mapping with all inputs, the same on every rank.

    `parts` are this rank's parts of the inputs that it needs, as `feed` describes them. The whole of an input is loaded
    when the loop first reads it (`load`, with its name); names, `samples` and `shapes` cost nothing. An input that the
    loop has read, or set, is the one that a step takes. `loader` made the batch, and `position` is the loader's state
    after it.
    """

    def __init__(
        self, parts: Tensors, feed: BatchSpec, loader: Any, position: dict[str, Any], load: Callable[[str], Tensors]
    ) -> None:
        self.parts, self.feed, self.loader, self.position = parts, feed, loader, position
        self._load = load
        self._names = dict.fromkeys(feed.shapes)
        self._whole: Tensors = {}  # what `load` returned
        self._seen: Tensors = {}  # what the loop has read, or set

    @property
    def samples(self) -> int:
        """The number of samples of the global batch."""
        return self.feed.samples

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input of the global batch."""
        return dict(self.feed.shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._seen:
            self._seen[name] = self._read(name)
        return self._seen[name]

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self._names[name] = None
        self._seen[name] = tensor

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._seen.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        shapes = (f"{name}: {text(self.feed.dtypes[name], shape)}" for name, shape in self.feed.shapes.items())
        return f"a batch of {self.samples} samples ({', '.join(shapes)})"

    def _read(self, name: str) -> torch.Tensor:
        """The whole of an input. If this rank has a part of it, then with this part: a data set may not give the same
        numbers twice, and all ranks train on what they have loaded first."""
        piece, part = self.feed.pieces.get(name), self.parts.get(name)
        if piece is not None and part is not None and part.shape == self.feed.shapes[name] and not piece.takes:
            return part
        if not self._whole:
            self._whole = self._load(name)
        whole = self._whole[name]
        if piece is not None and part is not None:
            whole[elements_at(piece.places())] = part
        return whole

    def without_tensors(self) -> "CheckedBatch":
        """The batch as a position in the data alone."""
        return CheckedBatch({}, self.feed, self.loader, self.position, lambda name: {})

    def check(self) -> None:
        """Raises EngineError if the loop has changed the names, shapes or types of its tensors."""
        change = "change batches in the data set or in collate_fn, or give `engine.step` a dictionary of your own"
        for name in {**self.feed.shapes, **self._names}:
            if name not in self._names:
                raise EngineError(f"`{name}` was taken out of a loader's batch", change)
            if name not in self.feed.shapes:
                raise EngineError(f"`{name}` was put into a loader's batch", change)
        for name, tensor in self._seen.items():
            if not isinstance(tensor, torch.Tensor):
                raise EngineError(f"`{name}` of a loader's batch was made {kind(tensor)}", change)
            mine, its = (tensor.dtype, tuple(tensor.shape)), (self.feed.dtypes[name], self.feed.shapes[name])
            if mine != its:
                raise EngineError(f"`{name}` of a loader's batch was {text(*its)}, and is {text(*mine)}", change)

    def part_for(self, feed: BatchSpec) -> Tensors:
        """This rank's part for a program that takes such batches. Raises EngineError if that needs more of the batch
        than this rank can load."""
        return {name: self._part(name, feed) for name in feed.pieces}

    def _part(self, name: str, feed: BatchSpec) -> torch.Tensor:
        if name not in self._seen and feed.pieces[name] == self.feed.pieces.get(name):
            return self.parts[name]
        return feed.pieces[name].of(self[name])
