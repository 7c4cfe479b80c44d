"""Buckets are reduced while backward goes on: as soon as they are full, in one order on all ranks."""

import subprocess
from pathlib import Path

import pytest
import torch

from ssdsl.runtime.ranks.transport import Merge, PendingWork, Transport, Works
from ssdsl.runtime.ranks.world import Group, World
from ssdsl.runtime.step.completion import CompletionStep, FlatCut, GradientCompletion, Levels
from ssdsl.runtime.step.flat_params import FlatWeights, make_flat_param
from ssdsl.runtime.step.gradient_buckets import filling

WIDTH = 4


class Alone(Transport):
    """A rank whose sums are those of two ranks with equal numbers; `started` notes what it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    def start_all_reduce(self, x: torch.Tensor, group: object, merge: Merge = "sum") -> PendingWork:
        self.started.append("all_reduce")
        return Works((), then=lambda: x.mul_(2))

    def start_reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: object) -> PendingWork:
        self.started.append("reduce_scatter")
        return Works((), x, then=lambda: into.copy_(2 * x.chunk(2)[0]))


class Chain:
    """Layers `y = tanh(y @ w)` whose weights are a flat parameter each, numbered from the first; `events` are what
    their backward runs, and what starts meanwhile."""

    def __init__(self, layers: int, kind: str = "all_reduce") -> None:
        self.transport = Alone()
        self.events = self.transport.started
        group = Group("dp", (0, 1), 0, None, World(self.transport))
        cut = FlatCut(group, (1,) * group.size)
        levels = Levels(optimizer=cut if kind == "reduce_scatter" else None)
        generator = torch.Generator().manual_seed(0)
        self.flats: list[FlatWeights] = []
        for n in range(layers):
            values = {f"w{n}": torch.randn(WIDTH, WIDTH, generator=generator)}
            flat = make_flat_param(n, values, levels, None, 2)
            flat.completion = GradientCompletion(once=(CompletionStep(kind, cut),))
            self.flats.append(flat)

    def backward(self, order: list[int], forget: int | None = None) -> None:
        """One backward in which these flat parameters are reduced; the layer to `forget` gets no gradient."""
        y = torch.ones(2, WIDTH)
        for n, flat in enumerate(self.flats):
            w = flat.parameters[f"w{n}"]
            y = torch.tanh(y @ (w.detach() if n == forget else w))
            if y.requires_grad:
                y.register_hook(lambda _, n=n: self.events.append(f"layer {n}"))
        with filling([self.flats[n] for n in order], lambda flat: flat.start_reduce()):
            y.sum().backward()
            self.events.append("end")


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_a_full_bucket_starts_before_the_layers_in_front_of_it(kind: str) -> None:
    chain = Chain(3, kind)
    chain.backward([2, 1, 0])
    assert chain.events == ["layer 2", kind, "layer 1", kind, "layer 0", kind, "end"]


def test_none_starts_before_those_in_front_of_it_in_the_order_of_all_ranks() -> None:
    chain = Chain(3)
    chain.backward([1, 2, 0])
    assert chain.events == ["layer 2", "layer 1", *["all_reduce"] * 2, "layer 0", "all_reduce", "end"]


def test_what_gets_no_gradient_starts_at_the_end_with_zeros() -> None:
    chain = Chain(3)
    chain.backward([2, 1, 0], forget=1)
    assert chain.events == ["layer 2", "all_reduce", "layer 1", "layer 0", "end", *["all_reduce"] * 2]
    chain.flats[1].wait_reduce()
    assert not any(gradient.any() for gradient in chain.flats[1].gradients().values() if gradient is not None)


def test_a_backward_that_reduces_nothing_only_adds() -> None:
    chain, alone = Chain(2), Chain(2)
    chain.backward([])
    chain.backward([1, 0])
    assert chain.events[3:] == ["layer 1", "all_reduce", "layer 0", "all_reduce", "end"]
    alone.backward([1, 0])
    for flat, once in zip(chain.flats, alone.flats, strict=True):
        flat.wait_reduce()
        once.wait_reduce()
        for name, gradient in flat.gradients().items():
            assert gradient is not None and torch.equal(gradient, 2 * once.gradients()[name])


def test_a_backward_that_fails_reduces_no_more() -> None:
    chain = Chain(2)
    with pytest.raises(ValueError, match="broken"), filling(chain.flats, lambda flat: flat.start_reduce()):
        raise ValueError("broken")
    chain.backward([])
    assert chain.events == ["layer 1", "layer 0", "end"]


OVER_GLOO = """
import sys, torch, torch.distributed as dist
from tests.runtime.step import test_gradient_buckets as here
from ssdsl.runtime.ranks.transport import Transport

rank = int(sys.argv[1])
dist.init_process_group("gloo", "file://" + sys.argv[2], rank=rank, world_size=2)

class Noting(Transport):
    started = []

    def start_all_reduce(self, x, group, merge="sum"):
        self.started.append("all_reduce")
        return super().start_all_reduce(x, group, merge)

here.Alone = Noting
chain = here.Chain(3)
chain.backward([2, 1, 0])
assert chain.events == ["layer 2", "all_reduce", "layer 1", "all_reduce", "layer 0", "all_reduce", "end"]
for flat in chain.flats:
    flat.wait_reduce()
torch.save([flat.gradients() for flat in chain.flats], sys.argv[3])
dist.barrier()
dist.destroy_process_group()
"""


def test_buckets_start_within_a_backward_over_gloo(tmp_path: Path, python: str) -> None:
    files = [tmp_path / f"rank{rank}.pt" for rank in range(2)]
    script = [python, "-c", OVER_GLOO]
    ranks = [subprocess.Popen([*script, str(n), str(tmp_path / "store"), str(f)]) for n, f in enumerate(files)]
    assert [rank.wait(90) for rank in ranks] == [0, 0]
    chain = Chain(3)
    chain.backward([2, 1, 0])
    for n, flat in enumerate(chain.flats):
        flat.wait_reduce()
        for name, gradient in flat.gradients().items():
            assert all(torch.equal(torch.load(f)[n][name], gradient) for f in files)
