"""Attention whose keys go around a ring: the numbers of one device, the work of each, and what they hold at once."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ssdsl.plan.regions import Regions, Runs, parts_of
from ssdsl.runtime.kernels import ring_attention
from ssdsl.runtime.kernels.attention import Attending, Tensors
from ssdsl.runtime.layout.regions import length
from ssdsl.runtime.ranks.world import World
from tests.runtime.train.ranks import on_ranks

HEADS, DEPTH = 2, 4
RUNS = parts_of((8, 8, 8, 8))
ZIGZAG: Regions = (*(((4 * k, 4 * k + 4), (28 - 4 * k, 32 - 4 * k)) for k in range(3)), ((12, 20),))
ODD: Regions = (((0, 1), (6, 9)), ((1, 2), (5, 6)), ((2, 5),))  # halves of runs of one position

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 0.02, "atol": 0.05}}


def go_around(regions: Regions, dtype: torch.dtype = torch.float32, *, is_causal: bool = True) -> None:
    """Compares each rank's output and gradients of query, key and value with those of one device."""
    count, seq = len(regions), max(end for runs in regions for _, end in runs)
    torch.manual_seed(0)
    whole = [torch.randn(1, HEADS, seq, DEPTH, dtype=dtype, requires_grad=True) for _ in range(3)]
    given = torch.randn(1, HEADS, seq, DEPTH, dtype=dtype)
    output = F.scaled_dot_product_attention(*whole, is_causal=is_causal)
    expected = [output, *torch.autograd.grad(output, whole, given)]

    def rank(transport: Any) -> list[torch.Tensor]:
        world = World(transport)
        group = world.new_group("cp", [*range(count)])
        assert group is not None
        own = [_rows(x.detach(), regions, transport.rank).requires_grad_() for x in whole]
        with world.enter():
            result = ring_attention.attention_ring(*own, None, is_causal, regions, group)
            gradients = torch.autograd.grad(result, own, _rows(given, regions, transport.rank))
        return [result, *gradients]

    found = on_ranks(count, rank)
    for number, tensors in enumerate(found):
        for have, want in zip(tensors, expected, strict=True):
            torch.testing.assert_close(have, _rows(want, regions, number), **TOLERANCES[dtype])


def _rows(x: torch.Tensor, regions: Regions, rank: int) -> torch.Tensor:
    return torch.cat([x[..., start:end, :] for start, end in regions[rank]], -2).contiguous()


@pytest.mark.parametrize("regions", [RUNS, ZIGZAG, ODD])
@pytest.mark.parametrize("is_causal", [True, False])
def test_numbers_are_those_of_one_device(regions: Regions, is_causal: bool) -> None:
    go_around(regions, is_causal=is_causal)


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize(("regions", "least", "most"), [(RUNS, 6, 7), (ZIGZAG, 1, 1.05)])
def test_work_of_each_device(
    regions: Regions, least: float, most: float, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that are computed: with a chunk from either end, within 5 % as many on all."""
    work: dict[Runs, int] = {}
    blocks, steps = Attending._blocks, Attending._steps

    def counted(part: Attending, found: Iterable[Any]) -> Iterator[Any]:
        for block in found:
            rows, columns = block.size
            is_square = is_fused and block.seen is not None
            work[part.queries] = work.get(part.queries, 0) + rows * (columns + is_square) // (1 + is_square)
            yield block

    if is_fused:
        monkeypatch.setattr(Attending, "_blocks", lambda part: counted(part, blocks(part)))
    else:
        monkeypatch.setattr("ssdsl.runtime.kernels.attention._may_be_fused", lambda query, keys: False)
        monkeypatch.setattr(Attending, "_steps", lambda part, query: counted(part, steps(part, query)))
    go_around(tuple(tuple((start * 64, end * 64) for start, end in runs) for runs in regions))
    assert least <= max(work.values()) / min(work.values()) <= most


def test_no_device_holds_more_than_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of keys and values its own, a half that it computes with, and a half that arrives. In backward their gradients
    come behind them, a half that leaves and one that arrives (beside the one that is computed)."""
    living: dict[tuple[int, bool], weakref.WeakValueDictionary[int, torch.Tensor]] = {}
    most: dict[tuple[int, bool], int] = {}
    own, pass_on = ring_attention._Ring.own, ring_attention._Ring.pass_on

    def see(rank: int, tensors: Iterable[torch.Tensor]) -> None:
        for x in tensors:
            place = rank, x.dtype is torch.float32
            living.setdefault(place, weakref.WeakValueDictionary())[id(x)] = x
            most[place] = max(most.get(place, 0), sum(y.numel() for y in living[place].values()))

    def taken(around: ring_attention._Ring, half: int, tensors: Tensors) -> list[torch.Tensor]:
        found = own(around, half, tensors)
        see(around.group.index, found)
        return found

    def passed(around: ring_attention._Ring, step: int, half: int, tensors: Tensors) -> ring_attention._Passing:
        found = pass_on(around, step, half, tensors)
        see(around.group.index, (*tensors, *found.arriving))
        return found

    monkeypatch.setattr(ring_attention._Ring, "own", taken)
    monkeypatch.setattr(ring_attention._Ring, "pass_on", passed)
    go_around(ZIGZAG, torch.bfloat16)  # gradients travel in float32: they are told apart by that
    chunk = 2 * HEADS * length(ZIGZAG[0]) * DEPTH
    assert most == {(rank, is_gradient): chunk for rank in range(4) for is_gradient in (False, True)}
