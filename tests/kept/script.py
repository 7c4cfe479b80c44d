"""The training script whose checkpoints are kept, as a user writes one: `torchrun script.py FOLDER PLAN [NAME=N]...`.

It saves behind its third batch, where gradients wait for those of the fourth, and goes on to the sixth.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import default_collate

import ssdsl

SAVED, LAST = 3, 6  # batches, two of which make a step
SCALE = 256.0  # of the loss in float16
AXES = {"x": ("batch", "seq"), "y": ("batch", "seq")}


class Net(torch.nn.Module):
    """Tied, frozen and unused weights, running statistics, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.drop = torch.nn.Embedding(16, 6), torch.nn.Dropout(0.2)
        self.up, self.norm, self.down = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 6)
        self.frozen, self.unused = torch.nn.Linear(6, 6).requires_grad_(False), torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(6, 16)
        self.head.weight = self.emb.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.emb(x)
        inner = self.norm(self.up(h).flatten(0, 1)).unflatten(0, x.shape)
        h = self.frozen(h + self.drop(self.down(inner.relu())))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Counts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count: three batches of eight an epoch."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, start: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(5) * (1 + start % 3) + start) % 16
        return {"x": numbers[:-1], "y": numbers[1:]}


def example() -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = default_collate([Counts()[i] for i in range(8)])
    return found


def trained(engine: Any, folder: Path, saves: Path | None = None) -> list[list[float]]:
    """The loss and the learning rate of each batch from where `folder` is; saves to `saves` behind batch `SAVED`."""
    engine.optimizer(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, groups={"*bias|norm*": {"weight_decay": 0.0}})
    schedule = torch.optim.lr_scheduler.ExponentialLR(engine.optim, 0.8)
    loader = engine.loader(Counts(), batch_size=8, shuffle=True, seed=2)
    if engine.resume(folder) is None and engine.scaler is not None:
        engine.scaler.scale = SCALE
    found = []
    for batch in loader.epochs():
        if saves is not None and engine.micro_steps == SAVED:
            engine.save(saves, wait=True)
        if engine.micro_steps == LAST:
            break
        last = engine.micro_steps % 2 == 1
        loss = engine.step(batch, clip=0.5, update=last, scale=0.5)
        if last:
            schedule.step()
        found.append([loss, engine.optim.param_groups[0]["lr"]])
    return found


def main(folder: str, plan: str, *settings: str) -> None:
    params = {name: int(number) for name, number in (s.split("=") for s in settings)}
    torch.manual_seed(0)
    precision = "fp16" if params.get("Z") == 1 else None
    engine = ssdsl.engine(plan, Net(), example(), axes=AXES, params=params, precision=precision, seed=3)
    out = Path(folder)
    steps = trained(engine, out / "nowhere", out)
    if engine.rank == 0:
        (out / "steps.json").write_text(json.dumps(steps) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
