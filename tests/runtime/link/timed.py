"""A program of three processes: the time of calls, as a multiple of what the links need.

Rank 0 prints them. A call that starts at once on all ranks takes at least this long until the last one has it.
"""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ssdsl.runtime.link.backend import BACKEND, VARIABLE
from ssdsl.runtime.link.speed import Speed

SIZE = 3 << 19  # bytes of a tensor


def seconds(call: Callable[[], object]) -> float:
    """The time from the first rank's start to the last one's end."""
    dist.barrier()
    start = time.monotonic()
    call()
    ends = torch.tensor([-start, time.monotonic()], dtype=torch.float64)
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    return float(ends.sum())


def main() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speed = Speed.read(os.environ[VARIABLE])
    whole_s, latency_s = SIZE / speed.bytes_per_s, speed.latency_s
    x = torch.zeros(SIZE, dtype=torch.uint8)
    into = torch.empty(SIZE * ranks, dtype=torch.uint8)

    def message(source: int, to: int) -> None:
        if rank == source:
            dist.send(x, to)
        if rank == to:
            dist.recv(x, source)

    def two_at_a_time() -> None:
        """Two groups share the links."""
        for work in [dist.all_reduce(x[: SIZE // 2], group=g, async_op=True) for g in groups]:
            work.wait()

    groups = [dist.new_group() for _ in range(2)]
    steps = ranks - 1
    needed = {
        "all_reduce": (lambda: dist.all_reduce(x), 2 * steps * (whole_s / ranks + latency_s)),
        "all_gather": (lambda: dist.all_gather([*into.chunk(ranks)], x), steps * (whole_s + latency_s)),
        "all_to_all": (lambda: dist.all_to_all_single(torch.empty_like(x), x), whole_s / ranks + latency_s),
        "broadcast": (lambda: dist.broadcast(x, 0), whole_s + steps * latency_s),
        "message": (lambda: message(1, 2), whole_s + latency_s),
        "shared": (two_at_a_time, 2 * steps * whole_s / ranks),
    }
    for name, (call, least_s) in needed.items():
        took_s = min(seconds(call) for _ in range(3))
        if rank == 0:
            print(name, took_s / least_s)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND)
    main()
    dist.barrier()
    dist.destroy_process_group()
