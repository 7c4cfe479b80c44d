"""What all peers share: the model, the process group, the optimizer, the timed loop and the file it writes.

A peer builds a `Step`: it trains on one batch and returns this rank's share of the loss; the shares of all ranks add up
to the loss of the single process. Each rank writes `OUT/rank{r}.json` with the keys of a compiled program: the seconds
of each step, the processor time at its end, the losses, and what the process held before there was a model and at most.
The losses are added up after the last step, outside the timing.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ssdsl.model.load import load
from ssdsl.runtime.health.start import join_ranks
from ssdsl.runtime.train.observers import processor_s

Batch = dict[str, Tensor]
Step = Callable[[Batch], Tensor]
LIMIT_S = 600.0
IGNORED = -100  # the label that cross_entropy skips


def train(build: Callable[[Any, int, int], Step]) -> None:
    """Run the peer's `build(model, rank, ranks)` and its step as often as the command line says, on a model of ssdsl's
    own, so that ours and the peers start from the same numbers."""
    args = read_arguments()
    torch.set_num_threads(1)
    join_ranks("cpu", None, LIMIT_S, args.link)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    base = held_bytes()
    model = load(args.model)
    result = time_steps(build(model.module, rank, ranks), model.batches, args.steps)

    args.out.mkdir(parents=True, exist_ok=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result |= {"base_bytes": base, "peak_bytes": peak}
    (args.out / f"rank{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def held_bytes() -> int:
    """What this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt:small")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compiled", action="store_true", help="by torch.compile")
    parser.add_argument("--link", help="over an emulated network, as bandwidth=1Gb/s,latency=2ms")
    parser.add_argument("--bucket-mb", type=float, help="of gradients that DDP reduces together")
    parser.add_argument("--defaults", action="store_true", help="DDP without options that help")
    return parser.parse_args()


def time_steps(step: Step, batches: tuple[Batch, ...], steps: int) -> dict[str, list[float]]:
    """The seconds of each step, from the end of the one before, this process's processor seconds at its end, and the
    losses."""
    step_s, used_s, shares = [], [], []
    dist.barrier()
    for number in range(steps):
        start = time.perf_counter()
        shares.append(step(batches[number % len(batches)]).detach())
        step_s.append(time.perf_counter() - start)
        used_s.append(processor_s())
    losses = torch.stack(shares)
    dist.all_reduce(losses)
    return {"step_s": step_s, "processor_s": used_s, "losses": losses.tolist()}


def adamw(parameters: Iterable[Tensor] | list[dict[str, list[Tensor]]]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def compiled(module: Any) -> Any:
    """The module; torch.compile makes its kernels if the command line asks for that."""
    if read_arguments().compiled:
        module.compile(dynamic=False)
    return module


def part_of(batch: Batch, part: int, parts: int) -> Batch:
    """One of the equal parts of a batch, a run of consecutive samples."""
    return {name: tensor.chunk(parts)[part] for name, tensor in batch.items()}


def shift(labels: Tensor) -> Tensor:
    """The token that each position has to predict, flat; the last position of each sample has none."""
    return torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].reshape(-1)
