"""Batches: as a training loop or a data set gives them, made tensors by the names of the model's inputs; and as a
program takes them, with the shapes of the global batch and the part that a rank needs."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import torch

from ..errors import EngineError
from ..layout.cut import Piece
from ..program.table import BatchInput
from ..ranks.control import Control, bytes_of

Table = Mapping[str, Any]
Batch = Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
Tensors = dict[str, torch.Tensor]
SAMPLED = 1024  # elements of a tensor that a mark looks at


def named(batch: Any, names: Sequence[str]) -> Tensors:
    """The tensors of a batch by name: a mapping by its keys, a dataclass or named tuple by its fields, a tuple or a
    single tensor in the order of `names`.

    Raises EngineError for other names, or a value that is no tensor.

    >>> sorted(named((torch.zeros(1), torch.zeros(1)), ["x", "y"]))
    ['x', 'y']
    """
    found = {name: value for name, value in _pairs(batch, names).items() if value is not None}
    change = f"give a dictionary with the model's inputs, {_listed(names)}, or a tuple in this order"
    if missing := [name for name in names if name not in found]:
        are = "are" if len(missing) > 1 else "is"
        raise EngineError(f"the batch has {_listed(found)}; {_listed(missing)} {are} missing", change)
    if unknown := [name for name in found if name not in names]:
        reason = f"the batch has {_listed(unknown)}, which the plan was not compiled with"
        raise EngineError(
            reason, f"leave it out in the data set or collate_fn, or add it to the example batch; {change}"
        )
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            reason = f"`{name}` of the batch is {kind(value)}, not a tensor"
            raise EngineError(reason, "make tensors in the data set or in collate_fn")
    return {name: found[name] for name in names}


def compare(batch: Mapping[str, torch.Tensor], control: Control) -> None:
    """Raises EngineError, on all ranks, if they were given different batches."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(bytes_of(batch[name].detach().cpu()))
    if (other := control.outlier(digest.digest())) is not None:
        raise another_batch(other)


def another_batch(rank: int) -> EngineError:
    """The error for a rank with another batch than rank 0."""
    return EngineError(
        f"rank {rank} was given another batch than rank 0: a step takes the global one, the same on all",
        "give all ranks the same batch, or let `engine.loader(dataset, ...)` load for each what it needs",
    )


def mark_of(batch: Mapping[str, torch.Tensor]) -> int:
    """A number that tells a batch from most others, of a sample of its elements: for each step, as a hash of all of
    them would take too long. It looks at tensors on CPUs alone, as it would have to wait for a GPU.

    >>> x = torch.arange(5000)
    >>> mark_of({"x": x}) == mark_of({"x": x.clone()}) != mark_of({"x": x.flip(0)})
    True
    """
    mark = 0
    for name in sorted(name for name, tensor in batch.items() if tensor.device.type == "cpu"):
        flat = batch[name].detach().reshape(-1)
        mark = zlib.crc32(bytes_of(flat[:: -(-flat.numel() // SAMPLED) or 1].cpu()), mark)
    return mark


def text(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """A tensor's type in words.

    >>> text(torch.float32, (2, 3))
    'float32[2, 3]'
    """
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def _pairs(batch: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in fields(batch)}
    if isinstance(batch, tuple) and set(getattr(batch, "_fields", ())) & set(names):
        return dict(zip(batch._fields, batch, strict=True))  # type: ignore[attr-defined]
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if not isinstance(batch, tuple | list):
        reason = f"the batch is {kind(batch)}"
        raise EngineError(reason, f"give a dictionary of tensors, or a tuple of them: {_listed(names)}")
    if len(batch) != len(names):
        reason = f"the batch has {len(batch)} values, and the model takes {len(names)}: {_listed(names)}"
        raise EngineError(reason, 'say which are meant with names=("x", "y"), or give a dictionary')
    return dict(zip(names, batch, strict=True))


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def kind(value: Any) -> str:
    """The type of a value in words: `a list`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


PAD = "make all batches alike, as by padding to a fixed length in collate_fn; the plan is compiled for one shape"


# -- what a program takes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchSpec:
    """The inputs of one step: `shapes` and `dtypes` of the global batch, and `pieces`, the parts that this rank needs.

    `samples` is the size of the global batch: the first axis of inputs that are cut by samples. `casts`: the program
    computes in half precision, and floating-point inputs of another type are converted.
    """

    samples: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    pieces: dict[str, Piece]
    casts: bool = False

    @classmethod
    def of(
        cls, inputs: Mapping[str, BatchInput], pieces: Mapping[str, Piece], samples: int = 0, casts: bool = False
    ) -> "BatchSpec":
        """The spec of a table's inputs and a rank's pieces. `samples` is by default the first input's first axis."""
        shapes = {name: tuple(entry.shape) for name, entry in inputs.items()}
        dtypes = {name: getattr(torch, entry.dtype) for name, entry in inputs.items()}
        first = next((shape[0] for shape in shapes.values() if shape), 1)
        return cls(samples or first, shapes, dtypes, dict(pieces), casts)

    def cast(self, batch: Tensors) -> Tensors:
        """The batch, with floating-point inputs in the program's types if it `casts`."""
        if not self.casts:
            return batch
        return {n: t.to(self.dtypes[n]) if t.is_floating_point() else t for n, t in batch.items()}

    def wholes(self) -> dict[str, Piece]:
        """Pieces that are the whole of every input."""
        return {name: Piece(name, shape, ()) for name, shape in self.shapes.items()}

    @property
    def is_idle(self) -> bool:
        """Whether this rank needs nothing."""
        return not self.pieces

    @cached_property
    def rows(self) -> list[int]:
        """The samples that this rank needs, in order; all samples if an input has another first axis."""
        if any(piece.shape[:1] != (self.samples,) for piece in self.pieces.values()):
            return list(range(self.samples))
        return sorted({row for piece in self.pieces.values() for row in piece.places()[0].tolist()})

    def cut(self, batch: Tensors, rows: Sequence[int]) -> Tensors:
        """This rank's part, contiguous, of a batch of which only these rows were loaded."""
        return {name: self._part(batch[name], piece, rows) for name, piece in self.pieces.items()}

    def _part(self, tensor: torch.Tensor, piece: Piece, rows: Sequence[int]) -> torch.Tensor:
        for axis, places in enumerate(piece.places()):
            if axis == 0 and tensor.shape[0] != piece.shape[0]:
                places = torch.searchsorted(torch.tensor(rows), places)
            if len(places) != tensor.shape[axis] or not torch.equal(places, torch.arange(len(places))):
                tensor = tensor.index_select(axis, places)
        return tensor.contiguous()

    def is_sample(self, batch: Tensors) -> bool:
        """Whether a batch is a single sample: every input lacks the axis of samples, and no other one."""
        return all(self._is_cut(name) and batch[name].shape == shape[1:] for name, shape in self.shapes.items())

    def size_of(self, batch: Tensors) -> int:
        """The number of samples in a whole batch: the size of most inputs along the batch, so that `check` names one
        that differs. Of two equally common sizes it is the program's, if that is one of them."""
        found = Counter(batch[name].shape[0] for name in self.shapes if self._is_cut(name) and batch[name].dim())
        return max(found, key=lambda size: (found[size], size == self.samples), default=self.samples)

    def _is_cut(self, name: str) -> bool:
        """Whether the first axis of an input is the batch."""
        return self.shapes[name][:1] == (self.samples,)

    def check(self, batch: Tensors, rows: int, change: str = PAD) -> None:
        """Raises EngineError if a batch, of which this many rows were loaded, does not fit the program.

        `change` is the help for a wrong shape.
        """
        for name, shape in self.shapes.items():
            tensor, dtype = batch[name], self.dtypes[name]
            loaded = (rows, *shape[1:]) if self._is_cut(name) else shape
            if tensor.dim() and tensor.shape[1:] == shape[1:] and tensor.shape[0] != loaded[0] and self._is_cut(name):
                reason = f"input `{name}` has {tensor.shape[0]} samples, and the batch has {rows}"
                raise EngineError(reason, "give all inputs of a batch equally many samples, along their first axis")
            if tuple(tensor.shape) != loaded:
                found = (self.samples, *tensor.shape[1:]) if tensor.shape[:1] == (rows,) else tuple(tensor.shape)
                what = f"{text(tensor.dtype, found)}, and the program takes {text(dtype, shape)}"
                raise EngineError(f"input `{name}` is {what}", change)
            if tensor.dtype != dtype:
                what = f"{text(tensor.dtype, shape)}, and the program takes {text(dtype, shape)}"
                raise EngineError(f"input `{name}` is {what}", f"convert it in the data set: .to({dtype})")
