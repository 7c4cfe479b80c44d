"""What is computed of the elements of a repeated constant is computed of the constant, and repeated then."""

import torch
from torch import Tensor, nn

from ssdsl.model.graph import Graph, Stage
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture


class Masked(nn.Module):
    """Adds what `mask` makes of a constant that is repeated for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def mask(self, repeated: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        repeated = torch.arange(6.0).reshape(1, 6).expand(len(x), 6)
        return (self.linear(x) + self.mask(repeated)).square().mean()


class Chosen(Masked):
    def mask(self, repeated: Tensor) -> Tensor:
        return torch.where(repeated > 2.0, 0.0, -1e4) * 2


class Summed(Masked):
    def mask(self, repeated: Tensor) -> Tensor:
        return repeated.cumsum(1).exp()


class Unlike(Masked):
    """The other operand has all elements."""

    def mask(self, repeated: Tensor) -> Tensor:
        return repeated + torch.arange(4.0).reshape(4, 1) * torch.ones(4, 6)


class Promoted(Masked):
    """A number in a tensor, of which operators take the type of others: repeated it decides."""

    def mask(self, repeated: Tensor) -> Tensor:
        number = torch.tensor(2.5, dtype=torch.float64).expand(6)
        return (number * torch.arange(6.0)).to(torch.float32) + repeated[0]


def graph_of(kind: type[Masked]) -> Graph:
    return capture(model_of(kind(), {"x": torch.randn(4, 6)}, {"x": ("batch", "hidden")}))


def kinds(graph: Graph, stage: Stage = Stage.COMPUTE) -> list[str]:
    return [
        o.kind for o in graph.operators if o.stage is stage and (stage is Stage.CONSTANT or o.name in graph.repeated)
    ]


def test_elements_are_computed_before_they_are_repeated() -> None:
    graph = graph_of(Chosen)
    assert kinds(graph) == ["expand"]
    assert {"gt", "where", "mul"} <= {*kinds(graph, Stage.CONSTANT)}
    (mask,) = (graph.by_name[name] for name in graph.repeated)
    assert mask.outputs[0].value == mask.name and graph.values[mask.inputs[0].value].shape == (1, 6)


def test_what_is_not_computed_of_single_elements_stays_behind() -> None:
    assert kinds(graph_of(Summed)) == ["expand", "cumsum", "exp"]


def test_nothing_changes_where_another_operand_has_all_elements() -> None:
    assert kinds(graph_of(Unlike)) == ["expand", "add"]


def test_the_result_has_its_dtype() -> None:
    assert "mul" in kinds(graph_of(Promoted))
