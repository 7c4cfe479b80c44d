"""Observers of a run's steps, which add to the rank's report: progress, a profile, gradients for a comparison."""

import os
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..health.failure import save
from ..layout.cut import Piece
from ..profile.recorder import time_messages, time_network
from ..step.flat_params import FlatWeights
from ..step.weights import Weights
from .engine import Engine
from .log import Log, Work, known_peak_flops
from .precision import HALF


@dataclass(frozen=True)
class ObservedStep:
    """A finished step; `processor_s` is what the process had used of processors at its end, `eval_loss` the loss of an
    evaluation after it."""

    number: int
    loss: float
    time_s: float
    processor_s: float
    eval_loss: float | None


def processor_s() -> float:
    """The seconds of processors that this process has used, with those of its children that have ended: compilers."""
    used = os.times()  # in hundredths of a second
    return time.process_time() + used.children_user + used.children_system


class Observer:
    """Called by all ranks alike: `around` and `after` each step, `report` at the end of the run."""

    def around(self, number: int) -> AbstractContextManager[None]:
        """A context for a step and the loading of its batches."""
        return nullcontext()

    def after(self, step: ObservedStep) -> None:
        """Looks at a finished step."""

    def report(self) -> dict[str, Any]:
        """The observer's entries of the rank's report."""
        return {}


class ProgressObserver(Observer):
    """Logs each step. If the run has no folder `out`, rank 0 prints a line on the terminal. `clips`: with the norm."""

    def __init__(self, engine: Engine, out: Path | None, clips: bool) -> None:
        self.engine, self.clips, self.prints = engine, clips, out is None and engine.rank == 0
        work, writes = Work.of(engine.table), engine.rank == 0
        self.log = Log(out, work, peak_flops=_peak_flops(engine), first=engine.updates, writes=writes)

    def after(self, step: ObservedStep) -> None:
        """Logs the step."""
        norm, lr = self.engine.grad_norm if self.clips else None, self.engine.optim.param_groups[0]["lr"]
        more = {"grad_norm": norm, "eval_loss": step.eval_loss}
        said = self.log.step(step.number, step.loss, lr=lr, time_s=step.time_s, **more)
        if self.prints:
            time_ms, judged = said["time_s"] * 1e3, step.eval_loss
            line = f"step {said['step']}  loss {said['loss']:.6f}  lr {said['lr']:.3g}  {time_ms:.1f} ms"
            print(line if judged is None else f"{line}  evaluation {judged:.6f}", flush=True)

    def report(self) -> dict[str, Any]:
        """Nothing; closes the log, which is a file of its own."""
        self.log.close()
        return {}


class ProfileObserver(Observer):
    """Records when each task of each step runs, and measures the network alone. `last` is the number of the last
    step."""

    def __init__(self, engine: Engine, last: int) -> None:
        self.engine, self.last, self.recorder = engine, last, engine.record()
        count, runner = len(engine.table.messages), engine.training.runner
        self.transfers_s = time_messages(runner.messages, count, runner.mover)

    def around(self, number: int) -> AbstractContextManager[None]:
        """Records the step."""
        return self.recorder.step(number, self.last)

    def report(self) -> dict[str, Any]:
        """The records; with a clock also the time of each operator."""
        recorder = self.recorder
        found = {"recorded": recorder.steps, "tensor_bytes": recorder.tensor_bytes, "transfers_s": self.transfers_s}
        if (clock := recorder.clock) is None:
            return found
        spent: Iterable[Any] = ([[*place, times] for place, times in step.items()] for step in clock.steps)
        clocked = list(zip(recorder.clocked, spent, strict=True))
        network = time_network(self.engine.world)
        return found | {"clocked": clocked, "network": network, "threads": torch.get_num_threads()}


class Dump(Observer):
    """Saves the gradients of every step and the final weights to the folder `out`."""

    def __init__(self, engine: Engine, out: Path | None) -> None:
        self.engine, self.out = engine, out
        self.dumped: list[dict[str, Any]] = []
        engine.watch_gradients(lambda: self.dumped.append(gradients(engine.weights, engine.pieces)))

    def report(self) -> dict[str, Any]:
        """Nothing: the tensors are in a file of their own."""
        assert self.out is not None
        held = state(self.engine.weights, self.engine.pieces)
        save({**held, "grads": self.dumped}, self.out / f"rank{self.engine.rank}.pt")
        return {}


def _peak_flops(engine: Engine) -> float | None:
    """The peak flop/s of all devices, if they are all like this one, for the format of most of the arithmetic."""
    held = engine.held()
    dtype = HALF.get(engine.precision or "", held[0].tensor.dtype if held else torch.float32)
    peak = known_peak_flops(engine.device, dtype)
    return peak * engine.world_size if peak is not None else None


# -- a rank's tensors, unsharded, for a comparison with one device -----------------------------------------------------


def gradients(weights: Weights, pieces: dict[str, Piece]) -> dict[str, Any]:
    """This rank's pieces of the gradients; called when they are complete."""
    found, tensors = {}, weights.tensors
    for flat in weights.flats:
        values: dict[str, torch.Tensor | None]
        if flat.shard is not None:
            values = dict(flat.views(_gathered(flat, flat.shard.grad)))
        else:
            values = {name: parameter.grad for name, parameter in flat.parameters.items()}
        for name, value in values.items():
            found[name] = pieces[name].with_layout(value if value is not None else torch.zeros_like(tensors[name]))
    return found


def state(weights: Weights, pieces: dict[str, Piece]) -> dict[str, Any]:
    """This rank's pieces of the weights and buffers."""
    weights.settle()
    found = {}
    for flat in weights.flats:
        values = flat.views(_gathered(flat, flat.shard)) if flat.shard is not None else flat.parameters
        found.update({name: pieces[name].with_layout(value) for name, value in values.items()})
    return {"weights": found, "buffers": {n: pieces[n].with_layout(value) for n, value in weights.buffers.items()}}


def _gathered(flat: FlatWeights, mine: torch.Tensor | None) -> torch.Tensor:
    """All shards concatenated; not counted as communication of the step."""
    assert flat.shard is not None
    part = torch.zeros_like(flat.shard) if mine is None else mine.detach()
    for cut in reversed(flat.levels.cuts):
        with cut.group.world.uncounted():
            part = cut.gathered(part.contiguous())
    return part
