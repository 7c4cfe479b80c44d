"""Sorts of rows that are undone again are left out; those whose order matters stay."""

import pytest
import torch
from torch import nn

from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture

ROWS, EXPERTS, WIDTH = 6, 3, 4


class Mixture(nn.Module):
    """Each row goes to `chosen` experts; a subclass says how it comes back."""

    chosen = 2

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, expert = self.gate(x).softmax(-1).topk(self.chosen)
        return self.routed(x, score.flatten(), expert.flatten()).square().mean()

    def sorted(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The order, and the weighted rows in it."""
        import transformers.integrations.moe  # noqa: F401

        order = expert.argsort()
        ends = torch.histc(expert.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        rows = torch.ops.transformers.grouped_mm_fallback(x[order // self.chosen], self.weight, ends)
        rows = (rows + self.bias[expert[order]]).relu()
        return order, rows * score[order, None]

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        return rows[order.argsort()].view(-1, self.chosen, WIDTH).sum(1)


class Added(Mixture):
    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        return torch.zeros_like(x).index_add(0, order // self.chosen, rows)


class Single(Mixture):
    chosen = 1

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return rows[back]


class Ordered(Mixture):
    """Adds up what stands in front of a row: this depends on the order."""

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        return rows.cumsum(0)[order.argsort()].view(-1, self.chosen, WIDTH).sum(1)


class Numbered(Mixture):
    """Weighs a row by its place in the sorted order."""

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        rows = rows * torch.arange(len(order))[:, None]
        return rows[order.argsort()].view(-1, self.chosen, WIDTH).sum(1)


class First(Mixture):
    """Adds the first of the sorted rows to each."""

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        return rows[order.argsort()].view(-1, self.chosen, WIDTH).sum(1) + rows[0]


class Gathered(Mixture):
    """Adds some of the sorted rows, by their places in the order, to each."""

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        order, rows = self.sorted(x, score, expert)
        some = rows.gather(0, (x > 0).long())
        return rows[order.argsort()].view(-1, self.chosen, WIDTH).sum(1) + some


class Elsewhere(Mixture):
    """The rows come back in the order of the scores."""

    def routed(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        _, rows = self.sorted(x, score, expert)
        return rows[score.argsort()].view(-1, self.chosen, WIDTH).sum(1)


class WrongEnds(Mixture):
    """The runs of the experts are not those of the sort."""

    def sorted(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = expert.argsort()
        ends = torch.histc((EXPERTS - 1 - expert).float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        rows = torch.ops.transformers.grouped_mm_fallback(x[order // self.chosen], self.weight, ends)
        return order, rows * score[order, None]


class Descending(Mixture):
    """The runs are those of the experts from the last to the first, their ends are not."""

    def sorted(self, x: torch.Tensor, score: torch.Tensor, expert: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = expert.argsort(descending=True)
        ends = torch.histc(expert.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).int()
        rows = torch.ops.transformers.grouped_mm_fallback(x[order // self.chosen], self.weight, ends)
        return order, rows * score[order, None]


def captured(kind: type[Mixture]) -> Graph:
    torch.manual_seed(0)
    model = Model("mixture", kind(), ({"x": torch.randn(ROWS, WIDTH)},), {"x": ("batch", "feature")})
    graph = capture(model)
    check_capture(model, graph)
    return graph


@pytest.mark.parametrize("kind", [Mixture, Added, Single])
def test_an_order_that_is_undone_is_left_out(kind: type[Mixture]) -> None:
    graph = captured(kind)
    assert not {"sort", "argsort", "histc", "grouped_mm_fallback"} & {o.kind for o in graph.operators}
    (product,) = (o for o in graph.operators if o.kind == "routed_mm")
    batch = [d for d in product.dims if d.name == "batch"]
    assert len(batch) == 1 and not batch[0].fixed
    assert not any(d.fixed for d in product.dims)


@pytest.mark.parametrize("kind", [Ordered, Numbered, First, Gathered, Elsewhere, WrongEnds, Descending])
def test_an_order_that_matters_stays(kind: type[Mixture]) -> None:
    graph = captured(kind)
    assert "argsort" in {o.kind for o in graph.operators}
    assert "routed_mm" not in {o.kind for o in graph.operators}
