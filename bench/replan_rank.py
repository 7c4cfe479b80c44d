"""One rank of `python -m bench replan`: changes its plan there and back, and writes what that took."""

import argparse
import gc
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ssdsl.lang.shipped import plan_path
from ssdsl.model.load import load
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.link.backend import BACKEND
from ssdsl.runtime.profile.recorder import AllocatedMemory, count_allocations
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.session import begin

LIMIT_S = 600.0


class CompiledOnce(Live):
    """Programs that are compiled when a plan is asked for the first time."""

    known: ClassVar[dict[str, Live]] = {}

    def replanned(self, plan: str, params: Mapping[str, int] | None) -> Live:
        """See `Live.replanned`."""
        key = json.dumps([plan, params])
        if key not in self.known:
            self.known[key] = super().replanned(plan, params)
        return self.known[key]


def main() -> None:
    """Measure, and write the numbers of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--before", nargs="+", required=True)
    parser.add_argument("--after", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    count_allocations()
    dist.init_process_group(BACKEND)
    model = load(args.model)
    before, after = (
        {name: int(n) for name, _, n in (word.partition("=") for word in words)} for words in (args.before, args.after)
    )

    def programs(world: World) -> Live:
        return CompiledOnce(plan_path(args.plan), model, before, world.control)

    engine = begin(programs, device="cpu", backend=None, seed=0, timeout=LIMIT_S)
    engine.optimizer(torch.optim.AdamW, lr=1e-3)
    engine.step(model.batches[0])
    ways = after, before
    changes: list[dict[str, Any]] = [{"seconds": []} for _ in ways]
    for params in ways:
        engine.replan(args.plan, params)
    for _ in range(args.rounds):
        for params, found in zip(ways, changes, strict=True):
            dist.barrier()
            start = time.perf_counter()
            found["moved_bytes"] = engine.replan(args.plan, params)
            found["seconds"].append(time.perf_counter() - start)
    for params, found in zip(ways, changes, strict=True):
        gc.collect()
        found["old_bytes"] = state_bytes(engine)
        with AllocatedMemory(torch.device("cpu")) as memory:
            engine.replan(args.plan, params)
        found["new_bytes"] = state_bytes(engine)
        found["peak_bytes"] = memory.peak_bytes - memory.begun_bytes + found["old_bytes"]
    (args.out / f"rank{engine.rank}.json").write_text(json.dumps(changes))
    engine.close()


def state_bytes(engine: Engine) -> int:
    """The bytes of this rank's weights and buffers, and of the optimizer's state."""
    moments = (x for o in engine.ending.optimizers for state in o.torch.state.values() for x in state.values())
    held = (one.tensor for one in engine.held())
    return sum(x.nbytes for x in (*held, *moments) if isinstance(x, torch.Tensor))


if __name__ == "__main__":
    main()
