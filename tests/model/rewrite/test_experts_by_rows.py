"""Mixtures of transformers compute their experts by rows that name them; a sort of a model's own stays."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture

ROWS, EXPERTS, WIDTH, INNER = 6, 3, 4, 8
CONFIGURED = {  # how a family of transformers has its experts
    "gated": {},
    "plain": {"has_gate": False},
    "biased": {"has_bias": True, "is_transposed": True},
    "normed": {"has_post_expert_norm": True},
}


def experts(implementation: str, **how: Any) -> nn.Module:
    """The experts of a family of transformers, with an implementation of its library."""
    moe = pytest.importorskip("transformers.integrations.moe")

    @moe.use_experts_implementation(**how)
    class Experts(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.num_experts, self.act_fn = EXPERTS, nn.functional.silu
            name, inner = ("gate_up_proj", 2 * INNER) if how.get("has_gate", True) else ("up_proj", INNER)
            for part, (given, made) in {name: (WIDTH, inner), "down_proj": (INNER, WIDTH)}.items():
                shape = (given, made) if how.get("is_transposed") else (made, given)
                setattr(self, part, nn.Parameter(torch.randn(EXPERTS, *shape)))
                if how.get("has_bias"):
                    setattr(self, f"{part}_bias", nn.Parameter(torch.randn(EXPERTS, made)))
            if how.get("has_post_expert_norm"):
                self.post_expert_norm = nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor, top: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the library's functions compute it")

    return Experts(SimpleNamespace(_experts_implementation=implementation))


class Mixture(nn.Module):
    """Each row goes to two experts."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, EXPERTS), experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, expert = self.gate(x).softmax(-1).topk(2)
        return self.experts(x, expert, score).square().mean()


class Sorted(nn.Module):
    """Experts that sort their rows themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, top: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        expert = top.flatten()
        order = expert.argsort()
        ends = torch.histc(expert.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        rows = torch.ops.transformers.grouped_mm_fallback(x[order // 2], self.weight, ends)
        return (rows * weight.flatten()[order, None])[order.argsort()].view(-1, 2, WIDTH).sum(1)


def captured(experts: nn.Module) -> Graph:
    """The graph of a mixture, which computes what the untouched module does."""
    x = torch.randn(ROWS, WIDTH)
    model = Model("mixture", Mixture(experts), ({"x": x},), {"x": ("batch", "feature")})
    graph = capture(model)
    check_capture(model, graph)
    return graph


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("name", CONFIGURED)
def test_rows_name_their_experts(name: str, implementation: str) -> None:
    torch.manual_seed(0)
    functions = pytest.importorskip("transformers.integrations.moe").ALL_EXPERTS_FUNCTIONS
    before = dict(functions)
    graph = captured(experts(implementation, **CONFIGURED[name]))
    assert dict(functions) == before and "eager" not in functions
    assert not {"sort", "argsort", "histc", "grouped_mm_fallback"} & {o.kind for o in graph.operators}
    products = [o for o in graph.operators if o.kind == "routed_mm"]
    assert len(products) == 2
    assert all("batch" in {d.name for d in product.dims} for product in products)
    assert not any(d.fixed for product in products for d in product.dims)


def test_a_users_function_stays() -> None:
    moe = pytest.importorskip("transformers.integrations.moe")

    def halved(module: Any, x: torch.Tensor, top: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight.sum(-1, keepdim=True) / 2

    moe.ALL_EXPERTS_FUNCTIONS["halved"] = halved
    try:
        graph = captured(experts("halved"))
    finally:
        del moe.ALL_EXPERTS_FUNCTIONS["halved"]
    assert "routed_mm" not in {o.kind for o in graph.operators}


def test_a_sort_of_a_models_own_stays() -> None:
    pytest.importorskip("transformers.integrations.moe")
    torch.manual_seed(0)
    graph = captured(Sorted())
    (product,) = (o for o in graph.operators if o.kind == "grouped_mm_fallback")
    assert any("`torch.ops.ssdsl.routed_mm` does not" in d.fixed for d in product.dims)
