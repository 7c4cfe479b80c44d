"""The training program: `torchrun main.py --steps 10`. It reads the table beside it and runs this rank's role."""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import fields
from itertools import cycle, islice
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import torch.distributed as dist

from .checkpoints.folder import has_checkpoint, reserve
from .data.batch import Batch
from .data.loader import Loader
from .data.user_data import load_data, loader_arguments
from .errors import EngineError
from .health.earlier_attempt import has_saved, note_start
from .health.failure import prepare_folder, report_failure, written_whole
from .health.heartbeat import Heartbeat
from .health.nodes import check_alike, collect, hand_in
from .health.start import find_place, join_group, transport
from .health.stop_request import ASKING
from .health.watchdog import Watchdog
from .options import Training, flag_of
from .profile.recorder import count_allocations
from .ranks.transport import settle
from .ranks.world import World
from .train.engine import Engine
from .train.engine_checkpoints import is_of_run
from .train.log import peak_memory_bytes
from .train.observers import Dump, ObservedStep, Observer, ProfileObserver, ProgressObserver, processor_s
from .train.optimizer import asked_optimizer, optimizers, own_options
from .train.precision import without_tf32
from .train.programs import InFolder

FOLDER = Path(__file__).parent.parent
LATER_S = 30.0  # torch.distributed times out that much later than the watchdog, whose report says more


def main() -> None:
    """Trains for some steps. Every rank reports to `--out`; the rank with the loss also during the run."""
    options = _options()
    ranks = int(json.loads((FOLDER / "program.json").read_text())["world_size"])
    rank = find_place(ranks, str(FOLDER / "main.py"))
    watchdog = None
    try:
        if options.out is not None:
            prepare_folder(options.out, rank)
        heartbeat = Heartbeat(options.out, rank)
        watchdog = Watchdog(heartbeat, ranks, options.timeout, options.out)
        heartbeat.report("joining the other ranks")
        limit_s = options.timeout + LATER_S
        device, name = join_group(FOLDER, options.device, options.backend, options.seed, limit_s, options.link)
        watchdog.use_attempt(name)
        if options.record:
            count_allocations()
            # loading the fused optimizer's kernels is no memory of a step
            torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
        check_alike(watchdog.store, FOLDER)
        base_bytes = _memory_in_use(device)  # before there are weights
        heartbeat.report("loading its weights")
        programs, world = (
            InFolder(FOLDER),
            World(transport(device, limit_s), mode=options.kernel_mode, blocking=options.blocking),
        )
        engine = Engine(programs, world, device, seed=options.seed)
        if options.save is not None:
            engine.stop_on(*ASKING)
        heartbeat.report("training", engine.training.name)
        heartbeat.follow(engine.now, engine.waits)
        with without_tf32() if options.dump else nullcontext():  # a dump is compared with a single device
            _train(engine, programs.batches, options, base_bytes)
        heartbeat.report("waiting for the other ranks to end")
        if options.out is not None:
            hand_in(watchdog.store, options.out, rank)
        world.transport.barrier()
        if options.out is not None:
            collect(watchdog.store, options.out, ranks)
        dist.destroy_process_group()
        heartbeat.end()
        watchdog.end()
        settle()
    except BaseException as error:
        report_failure(error, rank, watchdog, options.out)
        sys.stdout.flush()
        os._exit(1)  # other ranks may wait for this one in a collective: leave without waiting for them


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    known, kinds = {option.name: option for option in fields(Training)}, get_type_hints(Training)
    own: dict[str, dict[str, Any]] = {"optimizer": {"type": _optimizer}, "clip": {"type": _norm}}

    def add(names: str) -> None:
        for name in names.split():
            (kind, *_) = get_args(kinds[name]) or (kinds[name],)
            is_count = kind is int and name != "seed"
            form: dict[str, Any] = {"action": "store_true"} if kind is bool else {"type": _count if is_count else kind}
            parser.add_argument(flag_of(name), **form | dict(known[name].metadata) | own.get(name, {}))

    add("steps seed device backend optimizer lr clip accumulate data eval_data eval_every")
    add("save save_every keep resume allow_nan find_nan blocking link kernel_mode")
    parser.add_argument("--out", type=Path, default=None, help="folder for the ranks' reports")
    add("timeout_s record")
    dumps = "save gradients of every step and the final weights to --out"
    parser.add_argument("--dump", action="store_true", help=dumps)
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _optimizer(text: str) -> str:
    try:
        asked_optimizer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _norm(text: str) -> float:
    try:
        norm = float(text)
    except ValueError:
        norm = 0.0
    if not norm > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return norm


def _loader(engine: Engine, spec: str, seed: int, *, evaluate: bool = False) -> Loader:
    """The user's data."""
    with engine.control.together():
        data = load_data(spec)
    arguments = loader_arguments(data, engine.training.feed.samples, evaluate)
    return engine.loader(data, seed=seed, evaluate=evaluate, **arguments)


def _train(engine: Engine, own: list[dict[str, torch.Tensor]], options: argparse.Namespace, base: int) -> None:
    """Runs all steps, then writes the reports."""
    make_optimizer(engine, options.optimizer, options.lr)
    loader = _loader(engine, options.data, options.seed) if options.data is not None else None
    judges = _loader(engine, options.eval_data, options.seed, evaluate=True) if options.eval_data is not None else None
    if judges is not None and judges.left_out and options.out is None and engine.rank == 0:
        print(f"evaluation leaves out the last {judges.left_out} samples, which fill no batch of {judges.batch_size}")
    _resume(engine, options)
    batches: Iterator[Batch] = loader.epochs() if loader is not None else _cycle(own, engine.micro_steps)
    observers = _observers(engine, options)
    steps: list[ObservedStep] = []
    first = engine.updates
    for number in range(first, options.steps):
        with ExitStack() as around:
            for observer in observers:
                around.enter_context(observer.around(number))
            loss, time_s = _timed_step(engine, batches, options)
        used_s = processor_s()
        is_last = number == options.steps - 1
        stops = engine.stopping and not is_last
        eval_loss = None
        if judges is not None and not stops and _is_due(number, options.eval_every, is_last):
            eval_loss = engine.evaluate(judges)
        steps.append(ObservedStep(number, loss, time_s, used_s, eval_loss))
        for observer in observers:
            observer.after(steps[-1])
        if options.save is not None and _is_due(number, options.save_every, is_last or stops):
            engine.save(options.save, keep=options.keep)
        if stops:
            break
    engine.close()
    if options.out is not None:
        with written_whole(options.out / f"rank{engine.rank}.json") as beside:
            beside.write_text(json.dumps(_report(engine, steps, first, options.steps, base, observers)))
    elif engine.rank == 0 and steps:
        print(f"median step {statistics.median(step.time_s for step in steps) * 1e3:.1f} ms")
        if engine.updates < options.steps:
            print(f"asked to stop after {engine.updates} of {options.steps} steps: go on with --resume {options.save}")
    elif engine.rank == 0:
        print(f"the checkpoint is of step {first}, and --steps is {options.steps}: nothing left to train")


def _resume(engine: Engine, options: argparse.Namespace) -> None:
    """Continues from what an earlier attempt of this run saved, or from `--resume`. Rank 0 says which."""
    folder, saves = options.resume, engine.rank == 0 and options.save is not None
    with engine.control.together():
        again = saves and has_saved(options.save)
    if engine.control.broadcast(b"again" if again else b""):
        folder = options.save
    engine.control.vote(_mistake(folder, options) if engine.rank == 0 else None)
    with engine.control.together(), suppress(OSError):  # a folder that cannot be written is told by the first save
        if saves:
            reserve(options.save)
            note_start(options.save)
    if folder is not None and engine.resume(folder) is None and folder != options.save:
        raise EngineError(f"`{folder}` has no checkpoint to go on with", "name a folder that `--save` wrote to")


def _mistake(folder: Path | None, options: argparse.Namespace) -> str | None:
    """The error text if the run cannot go on from the checkpoint in `folder`, or, without one, if the folder of
    `--save` already has checkpoints; else None."""
    if folder is not None:
        return _unlike(folder, options)
    if options.save is not None and has_checkpoint(options.save):
        reason = f"`{options.save}` has checkpoints of an earlier run"
        return str(EngineError(reason, f"go on with it: --resume {options.save}; or save to another folder"))
    return None


def _unlike(folder: Path, options: argparse.Namespace) -> str | None:
    """The error text for a checkpoint that does not fit the options; None if it does."""
    from .checkpoints.reader import Checkpoint  # which loads torch.distributed.checkpoint
    from .train.training_state import saved_optimizers

    try:
        facts = Checkpoint.open(folder).facts
    except EngineError:  # `resume` says why
        return None
    if not is_of_run(facts):
        reason = f"`{folder}` has weights, but not the steps and the data of a run to continue"
        return str(EngineError(reason, "give a folder that `--save` wrote to; a script loads weights by `engine.load`"))
    if facts["data"] and options.data is None:
        return str(EngineError(f"the run that saved `{folder}` had data of its own", "give its --data too"))
    name, _, _ = asked_optimizer(options.optimizer)
    saved = next((facts.get("class") for facts in saved_optimizers(facts)), None)
    if saved is None or saved.lower() not in optimizers() or saved.lower() == name:
        return None
    reason = f"`{folder}` was saved with the state of {saved}, and --optimizer is {name}"
    return str(EngineError(reason, f"give --optimizer {saved.lower()}, or another folder with --resume"))


def _observers(engine: Engine, options: argparse.Namespace) -> list[Observer]:
    found: list[Observer] = [ProfileObserver(engine, options.steps - 1)] if options.record else []
    found.append(ProgressObserver(engine, options.out, clips=options.clip is not None))
    return [*found, Dump(engine, options.out)] if options.dump else found


def _report(
    engine: Engine, steps: list[ObservedStep], first: int, last: int, base: int, observers: list[Observer]
) -> dict[str, Any]:
    """This rank's report on the run, which began with the step `first`, and was to end before the step `last`."""
    report = {
        "rank": engine.rank,
        "role": engine.training.name,
        "losses": [step.loss for step in steps],
        "step_s": [step.time_s for step in steps],
        "processor_s": [step.processor_s for step in steps],
        "peak_bytes": peak_memory_bytes(engine.device),
        "comm": engine.world.counts,
        "runs": engine.compiled,
        "base_bytes": base,
        "first": first,
        "stopped": engine.stopping and engine.updates < last,
        "evaluated": {step.number: step.eval_loss for step in steps if step.eval_loss is not None},
    }
    for observer in observers:
        report |= observer.report()
    return report


def make_optimizer(engine: Engine, asked: str, lr: float) -> None:
    """Gives the engine an optimizer of torch.optim (`asked_optimizer`), with torch's own defaults."""
    are_real = engine.control.vote(more=not any(w.parameter.is_complex() for w in engine.ending.weights))
    name, make, options = asked_optimizer(asked)
    engine.optimizer(make, lr=lr, **{**own_options(name, are_real=are_real), **options})


def _timed_step(engine: Engine, batches: Iterator[Batch], options: argparse.Namespace) -> tuple[float, float]:
    """One optimizer step: the mean loss of its batches, and its seconds without the loading of batches."""
    given = [next(batches) for _ in range(options.accumulate)]
    share, last, start = 1 / len(given), len(given) - 1, time.perf_counter()
    more = {"clip": options.clip, "allow_nan": options.allow_nan, "find_nan": options.find_nan}
    loss = share * sum(engine.step(batch, update=n == last, scale=share, **more) for n, batch in enumerate(given))
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    return loss, time.perf_counter() - start


def _cycle(batches: list[dict[str, torch.Tensor]], start: int) -> Iterator[Batch]:
    """The program's own batches, over and over, from the run's position on."""
    return islice(cycle(batches), start % len(batches), None)


def _is_due(step: int, every: int | None, is_last: bool) -> bool:
    return is_last or (every is not None and (step + 1) % every == 0)


def _memory_in_use(device: torch.device) -> int:
    """The bytes of memory that the process uses now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux
        return peak_memory_bytes(device)
