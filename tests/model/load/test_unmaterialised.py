"""Modules made without their numbers, and recipes: whole and part are what the constructor would have made."""

import json
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import ssdsl.model.load.unmaterialised as deferred
from ssdsl.model.load import load
from ssdsl.model.load.unmaterialised import Deferred, ReadsNumbers, initial_draws, with_numbers
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.program.recipes import read_recipes, write_recipes


class Mixed(nn.Module):
    """Every way of making a weight that recipes have to know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(40, 30)
        self.truncated = nn.Parameter(torch.empty(20, 30))
        nn.init.trunc_normal_(self.truncated, std=0.02)
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(30, 30)))
        self.table = nn.Embedding(50, 20, padding_idx=3)  # one row is filled through a view
        self.tied = self.table.weight
        self.small_type = nn.Parameter(torch.randn(16, 16).to(torch.bfloat16))
        self.sum = nn.Parameter(self.linear.weight.detach() @ torch.ones(40, 5) / 40)
        self.given = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.own = nn.Parameter(torch.randn(10, 10, generator=torch.Generator().manual_seed(5)))
        self.filled = nn.Parameter(torch.empty(6, 6).normal_(generator=torch.Generator().manual_seed(6)))
        rates = [float(x) for x in torch.linspace(0, 0.1, 4)]  # small tensors have numbers
        self.register_buffer("positions", torch.arange(400).view(20, 20) * rates[-1], persistent=False)
        self.block = self.linear.weight.detach()[5:9, 2:7]  # no weight, just Python


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LARGE", 64)


def made() -> tuple[nn.Module, nn.Module, deferred.Recipes]:
    with initial_draws(seed=3):
        real = Mixed()
    with Deferred(seed=3) as scope:
        module = Mixed()
    return real, *scope.finish(module)


def test_recipes_make_what_the_constructor_makes(tmp_path):
    real, hollow, recipes = made()
    write_recipes(recipes, tmp_path / "weights.json")
    recipes = read_recipes(tmp_path / "weights.json")
    expected = {**dict(real.named_parameters()), **dict(real.named_buffers())}
    assert set(expected) <= set(recipes.weights)
    for name, tensor in expected.items():
        assert torch.equal(recipes.whole(name), tensor), name
        places = [torch.arange(n)[1::2] for n in tensor.shape]
        assert torch.equal(recipes.part(name, places), tensor[torch.meshgrid(*places, indexing="ij")]), name
    assert all(t.is_meta for t in hollow.parameters())


def test_only_a_part_is_made_where_it_can_be(monkeypatch):
    _, _, recipes = made()
    largest = []
    monkeypatch.setattr(deferred.Recipes, "whole", lambda self, name, device: largest.append(name))
    for name in ("linear.weight", "truncated", "small_type"):
        recipes.part(name, [torch.arange(3), torch.arange(4)])
    assert not largest


def test_a_rank_makes_its_weights_where_they_live():
    meta = torch.device("meta")
    with Deferred(seed=0) as scope:
        layer = nn.Linear(1 << 20, 1 << 20)  # 4 TiB, which only a device without numbers holds
        nn.init.trunc_normal_(layer.weight)
    _, recipes = scope.finish(layer)
    assert recipes.whole("weight", meta).shape == (1 << 20, 1 << 20)
    part = recipes.part("weight", [torch.arange(1 << 19), torch.arange(1 << 20)], meta)
    assert part.is_meta and part.shape == (1 << 19, 1 << 20)
    _, _, recipes = made()
    for name in ("table.weight", "orthogonal", "given", "sum", "positions"):
        assert recipes.part(name, [torch.arange(2), torch.arange(2)], meta).is_meta, name


def test_seeds_differ():
    with initial_draws(seed=3):
        first = nn.Linear(8, 8)
    with initial_draws(seed=4):
        second = nn.Linear(8, 8)
    assert not torch.equal(first.weight, second.weight)


def test_tied_weights_stay_tied():
    _, hollow, recipes = made()
    assert hollow.tied is hollow.table.weight
    real = with_numbers(hollow, recipes)
    assert real.tied is real.table.weight
    assert hollow.table.weight.is_meta, "the copy was filled, not the module"


def test_a_weight_larger_than_all_memory():
    with Deferred(seed=0) as deferred:
        layer = torch.nn.Embedding(1 << 24, 1 << 14)  # a TiB
    module, _ = deferred.finish(layer)
    assert module.weight.is_meta and module.weight.shape == (1 << 24, 1 << 14)


@pytest.mark.parametrize("numbers", [10, 1000], ids=["real", "hollow"])
def test_what_a_constructor_drops_is_freed(numbers: int):
    with Deferred(seed=0) as deferred:
        table = torch.arange(numbers)
        layer = torch.nn.Module()
        layer.register_buffer("near", table[:, None] - table)
        dropped = weakref.ref(table.untyped_storage())
        del table
        assert dropped() is None
        kept = [torch.ones(numbers) for _ in range(9)]  # some where the table lay
    _, recipes = deferred.finish(layer)
    assert torch.equal(recipes.whole("near"), torch.arange(numbers)[:, None] - torch.arange(numbers))
    del kept


def test_numbers_of_a_large_tensor_cannot_be_read():
    with Deferred(seed=0), pytest.raises(ReadsNumbers, match="local_scalar"):
        float(torch.randn(100).norm())


def test_steps_that_no_weight_needs_are_left_out(tmp_path):
    with Deferred(seed=0) as scope:
        torch.randn(500)
        module = nn.Linear(20, 20, bias=False)
    _, recipes = scope.finish(module)
    write_recipes(recipes, tmp_path / "weights.json")
    steps = json.loads((tmp_path / "weights.json").read_text())["steps"]
    assert [s[0] for s in steps] == ["aten::empty.memory_format", "aten::uniform_"]
    assert steps[1][-1] == 1, "the draw has its number among all"


MAKES = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(256, 256)

    def forward(self, x):
        ramp = torch.arange(256) + torch.ones(256)
        return ((self.fc(x) * ramp).square() * torch.tensor(0.5)).mean()

def model():
    return Net(), {"x": torch.randn(4, 256)}, {"x": ("batch", "feature")}
"""


def test_a_forward_that_makes_tensors(tmp_path: Path) -> None:
    """On the meta device they are beside the weights; the graph is the same."""
    (tmp_path / "makes.py").write_text(MAKES)
    real, hollow = (capture(load(f"{tmp_path / 'makes.py'}:model", meta=meta)) for meta in (False, True))
    assert [(o.name, o.kind, o.dims) for o in hollow.operators] == [(o.name, o.kind, o.dims) for o in real.operators]
