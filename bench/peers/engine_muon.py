"""Data parallel with Muon as ssdsl does it: `muon.ssp`, and an optimizer of which a group has a class of its own."""

from typing import Any

import torch
from torch import Tensor, nn

import ssdsl
from bench.peers.setup import Batch, Step, read_arguments, train
from bench.peers.single_muon import MUON
from ssdsl.model.load import load

MATRICES = "*h.*.c_attn.weight|*h.*.c_proj.weight|*h.*.c_fc.weight"


def build(model: nn.Module, rank: int, ranks: int) -> Step:
    example = load(read_arguments().model).batches[0]
    engine = ssdsl.engine("bench/peers/muon.ssp", model, dict(example), params={"D": ranks}, device="cpu")
    groups: dict[str, Any] = {MATRICES: {"class": torch.optim.Muon, **MUON}}
    engine.optimizer(torch.optim.AdamW, lr=1e-3, groups=groups)

    def step(batch: Batch) -> Tensor:
        return torch.tensor(engine.step(batch) / ranks)

    return step


if __name__ == "__main__":
    train(build)
