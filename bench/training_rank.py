"""One rank of the benchmark of training: the engine's steps, saves and loads beside the least that could do the same.

The bare step is the compiled program alone: this rank's part of a batch goes through its role's code, then the same
optimizer steps on what the program trains. Nobody votes, sums the loss, or looks at the batch. Ways take turns in
blocks of steps, in an order that turns around each round; a block lasts from one barrier to the next.
"""

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from ssdsl.runtime.checkpoints.content import Content
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.folder import engine_in
from ssdsl.runtime.train.training_state import content

Step = Callable[[], object]
Batch = dict[str, torch.Tensor]
ADAMW = {"lr": 1e-4}
SAVES = 7
BESIDE = 5  # steps that are timed without a save


class Samples(Dataset[Batch]):
    """The samples of a batch, again and again: they cost nothing to load."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.rows = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        return self.rows[index % len(self.rows)]


def main() -> None:
    """Measure, and write the numbers of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True, help="of a block")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    engine = engine_in(args.folder, device="cpu")
    engine.optimizer(torch.optim.AdamW, **ADAMW)
    result = {**race(ways(engine), args.steps, args.rounds), **checkpoints(engine, args.out)}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"rank{engine.rank}.json").write_text(json.dumps(result))


# -- steps -------------------------------------------------------------------------------------------------------------


def ways(engine: Engine) -> dict[str, Step]:
    """The bare step, twice, which shows the noise; with a DataLoader; and the engine's."""
    batch: Batch = engine.programs.batches[0]  # type: ignore[attr-defined]
    samples = engine.training.feed.samples
    loader = engine.loader(Samples(batch, 4 * samples), samples).epochs()
    bare = bare_step(engine, batch)
    return {
        "bare": bare,
        "again": bare,
        "fed": fed_step(engine, batch, bare),
        "step": lambda: engine.step(batch),
        "loader": lambda: engine.step(next(loader)),
        "clip": lambda: engine.step(batch, clip=1.0),
    }


def bare_step(engine: Engine, batch: Batch) -> Step:
    """The compiled program's own step."""
    share, weights = engine.training, engine.weights
    parts = {name: piece.of(batch[name]) for name, piece in share.inputs.items()}
    trained = [p for flat in weights.flats for p in flat.trained()]
    optimizer = torch.optim.AdamW(trained, **ADAMW)

    def step() -> None:
        with engine.world.enter():
            share.run(parts, 0, 0)
            optimizer.step()
            share.after_update()
            weights.take_next()

    return step


def fed_step(engine: Engine, batch: Batch, bare: Step) -> Step:
    """The bare step, for which a DataLoader loads the samples that this rank needs."""
    feed = engine.training.feed
    rows = [] if feed.is_idle else feed.rows
    loader = DataLoader(Samples(batch, 4 * len(rows)), len(rows) or 1)
    loaded = itertools.chain.from_iterable(itertools.repeat(loader))

    def step() -> None:
        if rows:
            next(loaded)
        bare()

    return step


def race(steps: dict[str, Step], count: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """The milliseconds of a step of each way, round by round, behind one that does not count: on the clock, and of this
    process's processor time, which others on the machine do not change."""
    found: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in steps} for kind in ("clock", "processor")}
    for number in range(rounds + 1):
        for way in steps if number % 2 else reversed(steps):
            for kind, taken in zip(found, block(steps[way], count), strict=True):
                if number:
                    found[kind][way].append(taken)
    return found


def block(step: Step, count: int) -> tuple[float, float]:
    """The milliseconds of one of some steps: on the clock, and of this process's processor time."""
    dist.barrier()
    start, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    dist.barrier()
    return (time.perf_counter() - start) * 1e3 / count, (time.process_time() - used) * 1e3 / count


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoints(engine: Engine, out: Path) -> dict[str, Any]:
    """The milliseconds of saving and loading, of what they are compared with, and of steps beside a save."""
    batch: Batch = engine.programs.batches[0]  # type: ignore[attr-defined]
    found: dict[str, list[float]] = {n: [] for n in ("copy", "save", "write", "beside", "without", "read", "load")}
    copied = _content(engine)
    owned = [held.tensor.detach() for held in copied.tensors.values() if held.owns]
    buffers = [torch.empty_like(tensor) for tensor in owned]
    run, file = out.parent / "run", out.parent / f"state{engine.rank}.pt"
    torch.save({".".join(path): held.tensor.clone() for path, held in copied.tensors.items()}, file)
    for _ in range(SAVES):
        found["without"].append(block(lambda: engine.step(batch), BESIDE)[0])
        found["copy"].append(timed(lambda: [b.copy_(t) for b, t in zip(buffers, owned, strict=True)]))
        found["save"].append(timed(lambda: engine.save(run)))
        found["beside"].append(beside(engine, batch))
        found["write"].append(timed(lambda: engine.save(run, wait=True)))
        found["read"].append(timed(lambda: torch.load(file, weights_only=True)))
        found["load"].append(timed(lambda: engine.load(run)))
    size = sum(tensor.nbytes for tensor in owned)
    return {**{name: times[1:] for name, times in found.items()}, "bytes": size}


def beside(engine: Engine, batch: Batch) -> float:
    """The milliseconds of a step while a save goes on, on some rank."""
    dist.barrier()
    start, steps = time.perf_counter(), 0
    while engine.control.sum([float(any(t.name == "saves a checkpoint" for t in threading.enumerate()))]) != [0.0]:
        steps += 1
        engine.step(batch)
    taken = time.perf_counter() - start
    engine._checkpoints.saver.wait()
    return taken * 1e3 / max(steps, 1)


def _content(engine: Engine) -> Content:
    return content(engine.held(), engine.ending, {})


def timed(work: Callable[[], object]) -> float:
    """The milliseconds that work takes this rank, which all begin together."""
    dist.barrier()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
