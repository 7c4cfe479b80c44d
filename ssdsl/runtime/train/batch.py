"""A batch as a training loop gives it, and this rank's part of it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..control import Control, bytes_of
from ..cut import Piece
from ..errors import EngineError

Table = Mapping[str, Any]
Batch = Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
Sizes = dict[str, tuple[int, ...]]


class Part(dict[str, torch.Tensor]):
    """This rank's parts of a global batch, as `engine.loader` yields them; `sizes` are those of the whole tensors."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], sizes: Sizes) -> None:
        super().__init__(tensors)
        self.sizes = sizes


def named(batch: Batch, inputs: Table) -> Mapping[str, torch.Tensor]:
    """A whole batch by the names of the model's inputs: tensors without names are taken in their order.

    Raises EngineError for other names or numbers of tensors, and for what is no tensor.
    """
    names = ", ".join(inputs)
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if not isinstance(batch, Mapping):
        if not isinstance(batch, Sequence) or len(batch) != len(inputs):
            found = f"{len(batch)} values" if isinstance(batch, Sequence) else f"a {type(batch).__name__}"
            raise EngineError(f"the batch is {found}", f"give a dictionary with the model's inputs: {names}")
        batch = dict(zip(inputs, batch, strict=True))
    for name in inputs:
        if name not in batch:
            has = ", ".join(map(str, batch)) or "nothing"
            raise EngineError(f"the batch has no `{name}`, it has {has}", f"the model's inputs are {names}")
    if unknown := [str(name) for name in batch if name not in inputs]:
        raise EngineError(
            f"the model was compiled without an input `{unknown[0]}`",
            f"leave it out of the batch, or compile with an example that has it: the inputs are {names}",
        )
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor):
            raise EngineError(f"`{name}` of the batch is a {type(value).__name__}", "make it a tensor")
    return batch


def sizes_of(batch: Mapping[str, torch.Tensor]) -> Sizes:
    """The sizes of a whole batch."""
    return {name: tuple(tensor.shape) for name, tensor in batch.items()}


def check(batch: Mapping[str, torch.Tensor], inputs: Table, samples: int) -> None:
    """Raises EngineError for a whole batch of other sizes or dtypes than a program's, but for the number of samples."""
    for name, wanted in inputs.items():
        tensor, dtype, expected = batch[name], getattr(torch, wanted["dtype"]), list(wanted["shape"])
        if tensor.dtype != dtype:
            raise EngineError(
                f"`{name}` of the batch is {_said(tensor.dtype)}, and the program was compiled for {_said(dtype)}",
                f"convert it: `{name}.to({dtype})`",
            )
        first = 1 if expected[:1] == [samples] else 0
        if first and tensor.shape[:1] == (0,):
            raise EngineError(f"`{name}` of the batch has no samples", "leave out batches that are empty")
        if list(tensor.shape)[first:] != expected[first:] or tensor.dim() != len(expected):
            raise EngineError(
                f"`{name}` of the batch is {list(tensor.shape)}, and the program was compiled for {expected}",
                "pad or crop it to these sizes, or compile with an example of this size",
            )


def compare(batch: Mapping[str, torch.Tensor], control: Control) -> None:
    """Raises EngineError, on all ranks, where they were given different batches."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(bytes_of(batch[name].detach().cpu()))
    said = control.all_gather(digest.digest())
    if other := [rank for rank, text in enumerate(said) if text != said[0]]:
        raise EngineError(
            f"rank {other[0]} was given another batch than rank 0: a step takes the global one, the same on all",
            "give all ranks the same batch, or let `engine.loader(dataset, ...)` load for each what it needs",
        )


def part_of(batch: Mapping[str, torch.Tensor], needed: Mapping[str, Piece]) -> Part:
    """This rank's parts of a whole batch."""
    return Part({name: piece.of(batch[name]) for name, piece in needed.items()}, sizes_of(batch))


def _said(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
