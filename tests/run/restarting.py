"""A training script that torchrun starts again: `restarting.py FOLDER`.

Its first attempt loses rank 1 in the middle of a step, its second one rank 0 while a checkpoint is written.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import ssdsl
from ssdsl.runtime.train.engine import Engine

STEPS = 13


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.norm = torch.nn.Embedding(32, 8), torch.nn.LayerNorm(8)
        self.drop, self.head = torch.nn.Dropout(0.2), torch.nn.Linear(8, 32)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.norm(self.emb(x)))
        return torch.nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """20 samples: five batches of four an epoch."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32, (7,), generator=torch.Generator().manual_seed(index))
        return {"x": tokens[:-1], "y": tokens[1:]}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_a_step(engine: Engine) -> None:
    if engine.rank == 1:
        engine.watch_gradients(lambda: die() if engine.micro_steps == 7 else None)


def dies_in_a_save(engine: Engine) -> None:
    """At the first file that is written for step 9."""
    if engine.rank == 0:
        synced = os.fsync
        os.fsync = lambda handle: die() if engine.steps >= 9 else synced(handle)


AXES, PARAMS = {"x": ("batch", "seq"), "y": ("batch", "seq")}, {"D": 2, "Z": 1}


def model_and_batch() -> tuple[Net, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    data = Data()
    return Net(), {n: torch.stack([data[i][n] for i in range(4)]) for n in ("x", "y")}


def train(engine: Engine, folder: Path, attempt: int, fail: Callable[[Engine], None]) -> None:
    """Trains to the last step from where a run in this folder has come; writes what it resumed, and the losses."""
    engine.optimizer(torch.optim.AdamW, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(engine.optim, 0.1, total_steps=STEPS)
    loader = engine.loader(Data(), 4, shuffle=True, seed=5)
    resumed = engine.resume(folder / "run")
    fail(engine)
    losses: list[tuple[int, str]] = []
    for batch in loader.epochs():
        losses.append((engine.steps, engine.step(batch, clip=1.0).hex()))
        scheduler.step()
        written = folder / f"written-{attempt}-{engine.rank}"
        written.write_text(json.dumps([resumed, losses]))
        written.replace(folder / f"losses-{attempt}-{engine.rank}")  # whole, also where the rank is killed meanwhile
        if engine.steps % 3 == 0:
            engine.save(folder / "run", more={"loss": losses[-1][1]})
        if engine.steps == STEPS:
            break


def main(folder: Path) -> None:
    attempt, (net, example) = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), model_and_batch()
    engine = ssdsl.engine("zero", net, example, axes=AXES, params=PARAMS, timeout=60)
    train(engine, folder, attempt, (dies_in_a_step, dies_in_a_save, lambda _: None)[attempt])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
