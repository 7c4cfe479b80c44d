"""What a program takes: the shapes of its global batch, by the sizes of named axes, and the part that a rank needs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ..errors import EngineError
from ..layout.cut import Piece
from ..program.table import BatchInput
from .batch import Tensors, text

Sizes = tuple[tuple[str, int], ...]  # axes of inputs with their sizes, where these are not those of the example
AS_MANY = "give each input as many axes as in the example batch"


@dataclass(frozen=True)
class BatchSpec:
    """The inputs of one step: `shapes`, `dtypes` and `axes` of the global batch, and `pieces`, the parts that this rank
    needs.

    `axes` are the model's names of an input's axes; axes of one name have one size. `casts`: the program computes in
    half precision, and floating-point inputs of another type are converted.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    axes: dict[str, tuple[str, ...]]
    pieces: dict[str, Piece]
    casts: bool = False

    @classmethod
    def of(cls, inputs: Mapping[str, BatchInput], pieces: Mapping[str, Piece], casts: bool = False) -> "BatchSpec":
        """The spec of a table's inputs and a rank's pieces. In a table without names of axes the first axes are called
        `batch` if they have one size."""
        shapes = {name: tuple(entry.shape) for name, entry in inputs.items()}
        dtypes = {name: getattr(torch, entry.dtype) for name, entry in inputs.items()}
        first = next((shape[0] for shape in shapes.values() if shape), 1)
        axes = {name: entry.axes or _named(name, shapes[name], first) for name, entry in inputs.items()}
        return cls(shapes, dtypes, axes, dict(pieces), casts)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each axis."""
        return {a: n for name, axes in self.axes.items() for a, n in zip(axes, self.shapes[name], strict=True)}

    @cached_property
    def batch(self) -> str:
        """The name of the axis of samples: the first axis of the first input that has one."""
        return next((axes[0] for axes in self.axes.values() if axes), "batch")

    @property
    def samples(self) -> int:
        """The number of samples of the global batch."""
        return self.sizes.get(self.batch, 1)

    def differing(self, sizes: Mapping[str, int]) -> Sizes:
        """The sizes of those axes that have another size here."""
        return tuple(sorted((axis, n) for axis, n in sizes.items() if self.sizes.get(axis) != n))

    def described(self, sizes: Sizes) -> str:
        """Sizes in words: `a batch of 5`, `seq = 24`."""
        first = (f"a batch of {n}" for axis, n in sizes if axis == self.batch)
        return " with ".join([*first, *(f"{axis} = {n}" for axis, n in sizes if axis != self.batch)])

    def counted(self, sizes: Sizes) -> str:
        """The same as properties of a batch: `8 samples`, `seq = 24`."""
        return ", ".join(f"{n} samples" if axis == self.batch else f"{axis} = {n}" for axis, n in sizes)

    def sizes_of(self, batch: Tensors, rows: int | None = None) -> dict[str, int]:
        """The size of each axis in a batch, of which this many rows were loaded; None if it is whole.

        Raises EngineError for an input of another type or number of axes, or if inputs differ in the size of an axis.
        Then the size that most inputs have is taken as right; of two that are equally common, the program's.
        """
        found: dict[str, Counter[int]] = {}
        for name, axes in self.axes.items():
            self._check_kind(name, batch[name])
            for axis, size in zip(axes, batch[name].shape, strict=True):
                found.setdefault(axis, Counter())[size] += 1
        sizes = {axis: max(n, key=lambda size: (n[size], size == self.sizes[axis])) for axis, n in found.items()}
        if rows is not None and self.batch in sizes:
            sizes[self.batch] = rows
        for name, axes in self.axes.items():
            for axis, size in zip(axes, batch[name].shape, strict=True):
                if size != sizes[axis]:
                    raise EngineError(*self._apart(name, axis, size, sizes[axis]))
        return sizes

    def _check_kind(self, name: str, tensor: torch.Tensor) -> None:
        shape, dtype = self.shapes[name], self.dtypes[name]
        if tensor.dim() == len(shape) and tensor.dtype == dtype:
            return
        takes = f"and the program takes {text(dtype, shape)}"
        if tensor.dim() != len(shape):
            is_cut = self.axes[name][:1] == (self.batch,) and tensor.dim()
            found = (self.samples, *tensor.shape[1:]) if is_cut else tuple(tensor.shape)  # only some rows may be loaded
            raise EngineError(f"input `{name}` is {text(tensor.dtype, found)}, {takes}", AS_MANY)
        change = f"convert it in the data set: .to({dtype})"
        raise EngineError(f"input `{name}` is {text(tensor.dtype, shape)}, {takes}", change)

    def _apart(self, name: str, axis: str, size: int, others: int) -> tuple[str, str]:
        if axis == self.batch:
            reason = f"input `{name}` has {size} samples, and the batch has {others}"
            return reason, "give all inputs of a batch equally many samples, along their first axis"
        reason = f"input `{name}` has {size} along `{axis}`, and other inputs have {others}"
        return reason, f"give all inputs of a batch the same size along `{axis}`, or name the axes apart"

    # -- parts ---------------------------------------------------------------------------------------------------------

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
        if any(self.axes[name][:1] != (self.batch,) for name in self.pieces):
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
        cut = (axes[:1] == (self.batch,) and batch[n].dim() == len(axes) - 1 for n, axes in self.axes.items())
        return all(cut)


def _named(name: str, shape: tuple[int, ...], samples: int) -> tuple[str, ...]:
    """Names of an input's axes in a table without such."""
    return tuple("batch" if at == 0 and n == samples else f"{name}.{at}" for at, n in enumerate(shape))
