"""What both programs train, and how: their options, the model, the data, the groups and the schedule."""

import argparse
from dataclasses import dataclass, fields

import torch
from data import Windows
from model import GPT
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import default_collate

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Settings:
    """The options on the command line, with what they are by default."""

    steps: int = 300
    batch: int = 16
    seq: int = 64
    layers: int = 4
    width: int = 64
    heads: int = 4
    dropout: float = 0.1
    lr: float = 1e-3
    warmup: int = 30
    decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    evaluate: int = 100  # every so many steps
    autocast: str = ""  # bf16: matrix products in it

    def model(self) -> GPT:
        torch.manual_seed(self.seed)
        autocast = TYPES[self.autocast] if self.autocast else None
        return GPT(self.layers, self.width, self.heads, self.seq, self.dropout, autocast)

    def data(self, split: str) -> Windows:
        """An epoch is as long as the training; eight batches are for validation."""
        return Windows(split, self.seq, self.batch * (self.steps if split == "train" else 8), self.seed)

    def example(self) -> dict[str, torch.Tensor]:
        data = self.data("train")
        return default_collate([data[i] for i in range(self.batch)])

    def schedule(self, optimizer: torch.optim.Optimizer) -> SequentialLR:
        """Warm-up, then a cosine down to a tenth."""
        rise = LinearLR(optimizer, 1 / self.warmup, total_iters=self.warmup)
        fall = CosineAnnealingLR(optimizer, max(1, self.steps - self.warmup), self.lr / 10)
        return SequentialLR(optimizer, [rise, fall], [self.warmup])


def parser() -> argparse.ArgumentParser:
    """One option for each setting."""
    made = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(Settings):
        made.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return made


def settings_of(arguments: argparse.Namespace) -> Settings:
    return Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
