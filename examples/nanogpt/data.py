"""Text that every machine has: the sources of Python's own library, byte by byte."""

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch.utils.data import Dataset

VALID = 10  # one byte in so many, at the end of the text, is for validation


@cache
def text() -> torch.Tensor:
    """All of it, in the order of the files' names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


class Windows(Dataset):
    """Windows of the text, each at a place that follows from the seed and its index; `y` is one byte ahead of `x`."""

    def __init__(self, split: str, seq: int, count: int, seed: int = 0) -> None:
        border = len(text()) - len(text()) // VALID
        self.text = text()[:border] if split == "train" else text()[border:]
        self.seq, self.count, self.seed = seq, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        start = int(torch.randint(len(self.text) - self.seq, (), generator=draw))
        window = self.text[start : start + self.seq + 1].long()
        return {"x": window[:-1], "y": window[1:]}
