"""Batches in a file. Integers are stored in the smallest dtype that fits, because most of a batch are token ids."""

from collections.abc import Sequence
from pathlib import Path

import torch

Batch = dict[str, torch.Tensor]
FILE = "inputs.pt"
NARROW = (torch.uint8, torch.int16, torch.uint16, torch.int32)


def write_batches(folder: Path, batches: Sequence[Batch]) -> None:
    """Writes the program's batches into its folder."""
    dtypes = [{name: tensor.dtype for name, tensor in batch.items()} for batch in batches]
    torch.save({"batches": [{n: _narrowed(t) for n, t in b.items()} for b in batches], "dtypes": dtypes}, folder / FILE)


def read_batches(folder: Path) -> list[Batch]:
    """The batches, in their own dtypes. Raises OSError if the file is missing."""
    kept = torch.load(folder / FILE, weights_only=True)
    pairs = zip(kept["batches"], kept["dtypes"], strict=True)
    return [{name: tensor.to(dtypes[name]) for name, tensor in batch.items()} for batch, dtypes in pairs]


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.int64 or not tensor.numel():
        return tensor
    least, most = (int(x) for x in torch.aminmax(tensor))
    for dtype in NARROW:
        if torch.iinfo(dtype).min <= least and most <= torch.iinfo(dtype).max:
            return tensor.to(dtype)
    return tensor
