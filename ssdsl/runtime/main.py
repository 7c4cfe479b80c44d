"""The training program: `torchrun main.py --steps 10`. Reads the table beside it and runs this rank's role."""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .dump import gradients, state
from .failure import prepare_folder, report_failure, save, whole
from .nodes import check_alike, collect, hand_in
from .pulse import Pulse
from .record import time_messages
from .start import find_place, join_group, transport
from .train.batch import Batch
from .train.engine import Engine
from .train.feed import Feed
from .train.log import Log, Work, known_peak_flops
from .train.programs import InFolder
from .train.user_data import open_data
from .watch import Watch
from .world import World

FOLDER = Path(__file__).parent.parent
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS: dict[str, Any] = {"adamw": (torch.optim.AdamW, {"fused": True}), "sgd": (torch.optim.SGD, {})}
LATER_S = 30.0  # torch.distributed gives up that much later than the watch, which knows more


def main() -> None:
    """Trains for some steps; every rank reports to `--out`, the one with the loss also as it goes."""
    options = _options()
    ranks = int(json.loads((FOLDER / "program.json").read_text())["world_size"])
    rank = find_place(ranks, str(FOLDER / "main.py"))
    pulse = watch = None
    try:
        if options.out is not None:
            prepare_folder(options.out, rank)
        pulse = Pulse(options.out, rank)
        watch = Watch(pulse, ranks, options.timeout, options.out)
        pulse.says("joining the other ranks")
        device, attempt = join_group(FOLDER, options.device, options.backend, options.seed, options.timeout + LATER_S)
        watch.joined(attempt)
        if options.record:  # what an optimizer loads is no memory of the step
            torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
        check_alike(watch.board, FOLDER)
        base_bytes = _held(device)  # before there are weights
        pulse.says("loading its weights")
        programs, world = InFolder(FOLDER), World(transport(device, options.timeout + LATER_S))
        engine = Engine(programs, world, device, seed=options.seed)
        pulse.says("training", engine.training.name)
        pulse.watch(engine.now, engine.waits)
        _train(engine, _batches(engine, programs.batches, options), options, base_bytes)
        pulse.says("waiting for the other ranks to end")
        if options.out is not None:
            hand_in(watch.board, options.out, rank)
        world.transport.barrier()
        if options.out is not None:
            collect(watch.board, options.out, ranks)
        dist.destroy_process_group()
        pulse.end()
        watch.end()
    except BaseException as error:
        report_failure(error, rank, pulse, watch, options.out)
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
    parser.add_argument("--backend", choices=("gloo", "nccl"), default=None, help="default: nccl with cuda, else gloo")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--data", default=None, help="FILE:FUNCTION that returns the data; else the batches beside it")
    parser.add_argument("--out", type=Path, default=None, help="folder for the ranks' reports")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds to wait for a rank that does not move (default 600)"
    )
    parser.add_argument("--record", action="store_true", help="report when each task of each step starts and ends")
    parser.add_argument(
        "--dump", action="store_true", help="save gradients of every step and the final weights to --out"
    )
    return parser.parse_args()


def _batches(engine: Engine, own: list[dict[str, torch.Tensor]], options: argparse.Namespace) -> Iterator[Batch]:
    """As many as there are steps, of the user's data or the program's own, over and over."""
    if options.data is None:
        return cycle(own)
    feed = Feed.of(engine.table["inputs"], engine.training.inputs)
    return open_data(options.data, feed, engine.control, options.seed).epochs()


def _train(engine: Engine, batches: Iterator[Batch], options: argparse.Namespace, base: int) -> None:
    """All steps, then the reports."""
    make, given = OPTIMIZERS[options.optimizer]
    engine.optimizer(make, lr=options.lr, **given)
    transfers_s: dict[str, float] = {}
    recorder = engine.record() if options.record else None
    if recorder is not None:
        count, runner = len(engine.table["messages"]), engine.training.runner
        transfers_s = time_messages(runner.messages, count, runner.mover, engine.device)
    log = Log(options.out, Work.of(engine.table), peak_flops=_peak_flops(engine), writes=engine.rank == 0)
    times: list[float] = []
    losses: list[float] = []
    dumped: list[dict[str, Any]] = []
    if options.dump:
        engine.watch_gradients(lambda: dumped.append(gradients(engine.weights, engine.pieces)))
    for step in range(options.steps):
        with recorder.step(step, options.steps - 1) if recorder is not None else nullcontext():
            batch = next(batches)
            start = time.perf_counter()
            losses.append(engine.step(batch, allow_nan=True))
            if engine.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        lr = engine.optim.param_groups[0]["lr"] if engine.optim.param_groups else options.lr
        said = log.step(step, losses[-1], lr=lr, time_s=times[-1])
        if options.out is None and engine.rank == 0:
            print("  ".join(_words(said)), flush=True)
    log.close()
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


def _peak_flops(engine: Engine) -> float | None:
    """Of all devices, if they are like this one, for the format in which most of the arithmetic is done."""
    held = engine.held()
    dtype = PRECISIONS.get(engine.precision or "", held[0].tensor.dtype if held else torch.float32)
    peak = known_peak_flops(engine.device, dtype)
    return peak * engine.world_size if peak is not None else None


def _words(said: dict[str, Any]) -> list[str]:
    """A line of the log for a terminal."""
    return [
        f"step {said['step']}",
        f"loss {said['loss']:.6f}",
        f"lr {said['lr']:.3g}",
        f"{said['time_s'] * 1e3:.1f} ms",
    ]


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
