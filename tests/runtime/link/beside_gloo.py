"""A program of three processes, which makes each call over the emulated network and over gloo, and compares."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ssdsl.runtime.link.backend import BACKEND

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
MERGES = ("AVG", "SUM", "MIN", "MAX", "PRODUCT")
SIZES = (0, 1, 7, 1000)  # elements
SEVERAL_BLOCKS = 700_001
GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
Call = Callable[[Any], tuple[Tensor, ...]]  # makes a call in a group


def numbers(size: int, dtype: torch.dtype, salt: int = 0) -> Tensor:
    """Other numbers on each rank, which are small and whole: sums are exact in every order."""
    generator = torch.Generator().manual_seed(100 * salt + dist.get_rank())
    return torch.randint(0, 4, (size,), generator=generator).to(dtype)


def reductions(dtype: torch.dtype, size: int, name: str) -> Iterator[tuple[str, Call]]:
    """The calls that merge numbers of ranks."""
    op, ranks, rank = getattr(dist.ReduceOp, name), dist.get_world_size(), dist.get_rank()

    def all_reduce(group: Any) -> tuple[Tensor, ...]:
        x = numbers(size, dtype)
        dist.all_reduce(x, op, group)
        return (x,)

    def reduce(group: Any) -> tuple[Tensor, ...]:
        x = numbers(size, dtype)
        dist.reduce(x, 1, op, group)
        return (x,) if rank == 1 else ()

    def reduce_scatter(group: Any) -> tuple[Tensor, ...]:
        x, into = numbers(size * ranks, dtype), torch.empty(size, dtype=dtype)
        SCATTER(into, x, op, group)
        return into, x

    yield from (("all_reduce", all_reduce), ("reduce_scatter", reduce_scatter))
    if name != "AVG":
        yield "reduce", reduce


def copies(dtype: torch.dtype, size: int) -> Iterator[tuple[str, Call]]:
    """The calls that move numbers."""
    ranks, rank = dist.get_world_size(), dist.get_rank()

    def all_gather(group: Any) -> tuple[Tensor, ...]:
        into = [torch.empty(size, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(into, numbers(size, dtype), group)
        return tuple(into)

    def all_gather_single(group: Any) -> tuple[Tensor, ...]:
        into = torch.empty(size * ranks, dtype=dtype)
        GATHER(into, numbers(size, dtype), group)
        return (into,)

    def broadcast(group: Any) -> tuple[Tensor, ...]:
        x = numbers(size, dtype)
        dist.broadcast(x, 1, group)
        return (x,)

    def gather(group: Any) -> tuple[Tensor, ...]:
        into = [torch.empty(size, dtype=dtype) for _ in range(ranks)] if rank == 1 else None
        dist.gather(numbers(size, dtype), into, 1, group)
        return tuple(into or ())

    def scatter(group: Any) -> tuple[Tensor, ...]:
        into, parts = torch.empty(size, dtype=dtype), [numbers(size, dtype, salt) for salt in range(ranks)]
        dist.scatter(into, parts if rank == 1 else None, 1, group)
        return (into,)

    def all_to_all(group: Any) -> tuple[Tensor, ...]:
        into = torch.empty(size * ranks, dtype=dtype)
        dist.all_to_all_single(into, numbers(size * ranks, dtype), group=group)
        return (into,)

    def uneven(group: Any) -> tuple[Tensor, ...]:  # rank r sends r + k rows of two numbers to rank k
        sent, received = [rank + k for k in range(ranks)], [rank + k for k in range(ranks)]
        into = torch.empty(sum(received), 2, dtype=dtype)
        x = numbers(2 * sum(sent), dtype).view(-1, 2)
        dist.all_to_all_single(into, x, received, sent, group=group)
        return (into,)

    def messages(group: Any) -> tuple[Tensor, ...]:
        """Two tags, received in the other order."""
        into = [torch.empty(size, dtype=dtype) for _ in range(2)]
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        works = [dist.isend(numbers(size, dtype, tag), right, group, tag) for tag in (0, 1)]
        works += [dist.irecv(into[tag], left, group, tag) for tag in (1, 0)]
        for work in works:
            work.wait()
        return tuple(into)

    def batched(group: Any) -> tuple[Tensor, ...]:
        into, others = {}, [other for other in range(ranks) if other != rank]
        calls = []
        for other in others:
            into[other] = torch.empty(size, dtype=dtype)
            calls.append(dist.P2POp(dist.isend, numbers(size, dtype, other), other, group))
            calls.append(dist.P2POp(dist.irecv, into[other], other, group))
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return tuple(into.values())

    calls = (all_gather, all_gather_single, broadcast, gather, scatter, all_to_all, uneven, messages, batched)
    yield from ((call.__name__, call) for call in calls)


def compare(link: Any, gloo: Any) -> None:
    """Makes all calls in both groups. Raises AssertionError."""
    for dtype, size in [*itertools.product(DTYPES, SIZES), *((dtype, SEVERAL_BLOCKS) for dtype in DTYPES[:2])]:
        ops = MERGES if dtype.is_floating_point else MERGES[1:]
        for name, call in [*(pair for op in ops for pair in reductions(dtype, size, op)), *copies(dtype, size)]:
            pairs = zip(call(link), call(gloo), strict=True)
            assert all(torch.equal(ours, theirs) for ours, theirs in pairs), (name, dtype, size)


def several_groups() -> None:
    """Groups of two ranks and of all at the same time, gathered parts of other sizes, and objects."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = [(a, b) for a in range(ranks) for b in range(a)]
    groups = {pair: dist.new_group(pair) for pair in pairs}
    groups = {pair: group for pair, group in groups.items() if rank in pair} | {tuple(range(ranks)): None}
    sums = {members: torch.full((SEVERAL_BLOCKS,), float(rank)) for members in groups}
    works = [dist.all_reduce(sums[members], group=group, async_op=True) for members, group in groups.items()]
    for work in works:
        work.wait()
        assert work.is_completed() and work.is_success()
    assert all(bool((x == sum(members)).all()) for members, x in sums.items())
    parts = [torch.empty(place) for place in range(ranks)]
    dist.all_gather(parts, torch.full((rank,), float(rank)))
    assert [part.tolist() for part in parts] == [[float(place)] * place for place in range(ranks)]
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(ranks)]


def any_source() -> None:
    """Rank 0 receives from whoever sends first, and learns who that was."""
    if dist.get_rank() > 0:
        dist.send(torch.full((SEVERAL_BLOCKS,), float(dist.get_rank())), 0)
        return
    x, sources = torch.empty(SEVERAL_BLOCKS), set()
    for _ in range(1, dist.get_world_size()):
        sources.add(source := dist.recv(x))
        assert bool((x == source).all())
    assert sources == {*range(1, dist.get_world_size())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND)
    gloo = dist.new_group(backend="gloo")
    compare(dist.group.WORLD, gloo)
    several_groups()
    any_source()
    print("equal")
    dist.barrier()
    dist.destroy_process_group()
