"""One of the processes that measure this machine: `python -m ssdsl.cluster.probe RANK WORLD COMPUTING FOLDER`.

The first COMPUTING ranks compute at the same time, because in a training step all cores compute; then ranks 0 and 1
exchange messages. Each rank writes its measurements to FOLDER/rankN.json.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import quantiles

import torch
import torch.distributed as dist

SECONDS = 1.5  # the least duration of a measurement
SIDE = 1024  # rows, and columns, of the matrices that are multiplied
STREAM_BYTES = 64 << 20  # of each of three tensors: more than caches hold
LEAST_REPEATS = 5
CHAIN = 100  # operators, each of which reads the result of the one before
SMALL_ELEMENTS, LARGE_ELEMENTS = 1, 2 << 20
BESIDE = 16  # large messages that are sent beside a product of matrices: more than it takes time for


def main(rank: int, world: int, computing: int, folder: Path) -> None:
    """Measures with one thread, and writes the result."""
    torch.set_num_threads(1)
    store = f"file://{(folder / 'store').resolve()}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world, rank=rank)
    found: dict[str, float] = {}
    for name, measure in COMPUTE.items():
        dist.barrier()
        if rank < computing:
            found[name] = measure()
    pair = dist.new_group([0, 1])
    for name, (talk, elements, repeats) in TALK.items():
        dist.barrier()
        if rank < 2:
            found[name] = talk(torch.zeros(elements), repeats, rank, pair)
    dist.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def _best(work: Callable[[], object]) -> float:
    """The least time that the work took, in seconds: everything else that runs on the machine can only delay it."""
    work()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < LEAST_REPEATS or time.perf_counter() - begin < SECONDS:
        times.append(_timed(work))
    return min(times)


def _usual(talk: Callable[[], object], repeats: int) -> float:
    """The first quartile of the times of the messages, in seconds. The least time would be too good: how soon the other
    process wakes up is chance."""
    talk()
    return quantiles([_timed(talk) for _ in range(repeats)], n=4)[0]


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _matmul_flops(dtype: torch.dtype) -> float:
    """The operations per second of a product of two square matrices, 2 * SIDE**3 of them."""
    a, b = torch.randn(SIDE, SIDE).to(dtype), torch.randn(SIDE, SIDE).to(dtype)
    return 2 * SIDE**3 / _best(lambda: a @ b)


def _memory_bandwidth() -> float:
    """The bytes read and written per second while two tensors are added into a third."""
    a, b, c = (torch.zeros(STREAM_BYTES // 4) for _ in range(3))
    return 3 * STREAM_BYTES / _best(lambda: torch.add(a, b, out=c))


def _launch_s() -> float:
    """The seconds of an operator on eight numbers, forward or backward, as in training."""
    x = torch.zeros(8, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(CHAIN):
            y = y + x
        y.sum().backward()  # type: ignore[no-untyped-call]

    return _best(chain) / (2 * CHAIN)  # CHAIN additions, and the backward of each


def _ping_s(data: torch.Tensor, repeats: int, rank: int, pair: dist.ProcessGroup) -> float:
    """The seconds of a message from one rank to the other: half of a round trip."""

    def there_and_back() -> None:
        for sender in (0, 1):
            if rank == sender:
                dist.send(data, 1 - rank, pair)
            else:
                dist.recv(data, 1 - rank, pair)

    return _usual(there_and_back, repeats) / 2


def _all_reduce_s(data: torch.Tensor, repeats: int, rank: int, pair: dist.ProcessGroup) -> float:
    return _usual(lambda: dist.all_reduce(data, group=pair), repeats)


def _contention(data: torch.Tensor, repeats: int, rank: int, pair: dist.ProcessGroup) -> float:
    """The share by which a product of two square matrices takes longer beside all_reduces; alone and beside them in
    turn, as the machine may be busier at one time than at another."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    alone, beside = list[float](), list[float]()
    for _ in range(repeats):
        alone.append(_timed(lambda: a @ b))
        works = [dist.all_reduce(data, group=pair, async_op=True) for _ in range(BESIDE)]
        beside.append(_timed(lambda: a @ b))
        for work in works:
            assert work is not None
            work.wait()
    return max(0.0, quantiles(beside, n=4)[0] / quantiles(alone, n=4)[0] - 1)


COMPUTE: dict[str, Callable[[], float]] = {
    "float32_flops": lambda: _matmul_flops(torch.float32),
    "bfloat16_flops": lambda: _matmul_flops(torch.bfloat16),
    "memory_bandwidth": _memory_bandwidth,
    "launch_s": _launch_s,
}
TALK = {  # a measurement, the elements of its message, and its repetitions
    "small_ping_s": (_ping_s, SMALL_ELEMENTS, 1000),
    "large_ping_s": (_ping_s, LARGE_ELEMENTS, 40),
    "small_all_reduce_s": (_all_reduce_s, SMALL_ELEMENTS, 1000),
    "large_all_reduce_s": (_all_reduce_s, LARGE_ELEMENTS, 40),
    "contention": (_contention, LARGE_ELEMENTS, 20),
}


def _end_with(parent: int) -> None:
    """Ends this process when `parent`, the process that started it, has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(os.environ["SSDSL_PARENT"]),), daemon=True).start()
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
