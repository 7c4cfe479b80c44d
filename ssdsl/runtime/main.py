"""The training program: `torchrun main.py --steps 10`. Reads the table beside it and runs this rank's role."""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .dump import gradients, state
from .failure import leave, report_failure, save, state_folder, whole
from .pulse import Pulse
from .record import time_messages
from .start import find_place, join_group
from .train.engine import Engine
from .train.programs import InFolder
from .transport import Distributed
from .world import World

FOLDER = Path(__file__).parent.parent
OPTIMIZERS: dict[str, Any] = {"adamw": (torch.optim.AdamW, {"fused": True}), "sgd": (torch.optim.SGD, {})}


def main() -> None:
    """Trains for some steps; every rank reports to `--out`, the one with the loss also as it goes."""
    options = _options()
    ranks = int(json.loads((FOLDER / "program.json").read_text())["world_size"])
    rank = find_place(ranks, str(FOLDER / "main.py"))
    folder, pulse = state_folder(options.out), None
    try:
        pulse = Pulse(folder, rank)
        pulse.says("joining the other ranks")
        device = join_group(FOLDER, options.device, options.seed, options.timeout)
        if options.record:  # what an optimizer loads is no memory of the step
            torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
        base_bytes = _held(device)  # before there are weights
        pulse.says("loading its weights")
        programs, world = InFolder(FOLDER), World(Distributed(timedelta(seconds=options.timeout)))
        engine = Engine(programs, world, device, seed=options.seed)
        pulse.says("training", engine.training.name)
        pulse.watch(engine.now)
        _train(engine, programs.batches, options, base_bytes)
        pulse.says("waiting for the other ranks to end")
        world.transport.barrier()
        dist.destroy_process_group()
        pulse.end()
        leave(folder, options.out)
    except BaseException as error:
        report_failure(error, rank, pulse, folder, ranks, options.timeout)
        sys.stdout.flush()
        os._exit(1)  # the other ranks may wait for this one in a collective: leave without waiting for them


def _write_report(out: Path, report: dict[str, Any]) -> None:
    with whole(out / f"rank{report['rank']}.json") as beside:
        beside.write_text(json.dumps(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="training steps (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of random numbers, such as dropout's (default 0)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--out", type=Path, default=None, help="folder for the ranks' reports")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds to wait for a rank that does not move (default 600)"
    )
    parser.add_argument("--record", action="store_true", help="report when each task of each step starts and ends")
    parser.add_argument(
        "--dump", action="store_true", help="save gradients of every step and the final weights to --out"
    )
    return parser.parse_args()


def _train(engine: Engine, batches: list[dict[str, torch.Tensor]], options: argparse.Namespace, base: int) -> None:
    """All steps, then the reports."""
    make, given = OPTIMIZERS[options.optimizer]
    engine.optimizer(make, lr=options.lr, **given)
    transfers_s: dict[str, float] = {}
    recorder = engine.record() if options.record else None
    if recorder is not None:
        count, runner = len(engine.table["messages"]), engine.training.runner
        transfers_s = time_messages(runner.messages, count, runner.mover, engine.device)
    times: list[float] = []
    losses: list[float] = []
    dumped: list[dict[str, Any]] = []
    if options.dump:
        engine.watch_gradients(lambda: dumped.append(gradients(engine.weights, engine.pieces)))
    for step in range(options.steps):
        with recorder.step(step, options.steps - 1) if recorder is not None else nullcontext():
            start = time.perf_counter()
            losses.append(engine.step(batches[step % len(batches)], allow_nan=True))
            if engine.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        _progress(engine, options.out, step, losses[-1], times[-1])
    if options.out is None:
        if engine.rank == 0 and times:
            print(f"median step {statistics.median(times) * 1e3:.1f} ms")
        return
    if options.dump:
        save({**state(engine.weights, engine.pieces), "grads": dumped}, options.out / f"rank{engine.rank}.pt")
    report = {
        "rank": engine.rank,
        "role": engine.training.name,
        "losses": losses,
        "step_s": times,
        "peak_bytes": _peak(engine.device),
        "comm": engine.world.counts,
        "base_bytes": base,
    }
    if recorder is not None:
        report |= {"recorded": recorder.steps, "tensor_bytes": recorder.tensor_bytes, "transfers_s": transfers_s}
    _write_report(options.out, report)


def _progress(engine: Engine, out: Path | None, step: int, loss: float, time_s: float) -> None:
    if engine.rank != 0:
        return
    if out is None:
        print(f"step {step}  loss {loss:.6f}  {time_s * 1e3:.1f} ms", flush=True)
    else:
        with (out / "progress.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "time_s": time_s}) + "\n")


def _held(device: torch.device) -> int:
    """The bytes that the process holds now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux
        return _peak(device)


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
