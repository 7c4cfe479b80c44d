"""Conditions and numbers that are the same in every step are known at capture; others are refused."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.text.diagnostic import PlanError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(3, 3).tril())
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        return (self.two(y) if self.asks(x) else y).square().mean()

    def asks(self, x: Tensor) -> bool | Tensor:
        raise NotImplementedError


class LayerDrop(Net):
    """As wav2vec2 asks, with a probability of zero."""

    def asks(self, x: Tensor) -> bool | Tensor:
        return not torch.rand([]) < 0.0


class LayerDropAlways(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return torch.rand([]) >= 0.0


class LayersDropped(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return (torch.rand(3) < 0.0).tolist() == [False] * 3 and not (torch.rand(2, 2) < 0.0).any()


class Masked(Net):
    """As `nn.Transformer` asks whether a mask is the causal one."""

    def asks(self, x: Tensor) -> bool | Tensor:
        return bool((self.mask == torch.full((3, 3), 1.0).tril()).all())


class MaskedOtherwise(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return bool((self.mask != torch.full((3, 3), 1.0)).any())


class Number(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return int(self.mask.sum()) == 6 and self.mask.mean().item() > 0.6


class Numbers(Net):
    """As deformable attention takes the sizes of its levels from a buffer."""

    def asks(self, x: Tensor) -> bool | Tensor:
        first, *_, last = self.mask.sum(0).long().tolist()
        return x[:, last:].shape[1] == first


class Equal(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return torch.equal(self.mask, torch.ones(3, 3).tril()) and not torch.allclose(self.mask, torch.zeros(3, 3))


class Checked(Net):
    """As a function of torch checks its arguments."""

    def asks(self, x: Tensor) -> bool | Tensor:
        return F.gaussian_nll_loss(x, x, torch.ones(2, 4)) is not None


class CheckedInEachStep(Net):
    """As it checks what depends on the batch: it can only raise an error."""

    def asks(self, x: Tensor) -> bool | Tensor:
        return F.gaussian_nll_loss(x, x, x.square() + 1) is not None


class Sometimes(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return torch.rand([]) < 0.5


class OfInput(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return x.sum() > 0


class NumberOfInput(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return int(x.sum()) == 3


class EqualToInput(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return torch.equal(x, torch.zeros(2, 4))


class OfWeight(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return self.two.bias.sum() > 0


class Counted(Net):
    """The buffer changes behind the question."""

    def asks(self, x: Tensor) -> bool | Tensor:
        answer = bool(self.count < 1)
        self.count.add_(1)
        return answer


class Seen(Net):
    """What is asked for has changed through another view."""

    def asks(self, x: Tensor) -> bool | Tensor:
        counts = torch.zeros(2)
        first, same = counts[0], counts[:1]
        same.add_(1)
        return first < 1


class CountedBefore(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        self.count.add_(1)
        return self.count < 2


class Selected(Net):
    """As contrastive losses leave out the diagonal of scores, and then split what is left into pairs and others."""

    def asks(self, x: Tensor) -> bool | Tensor:
        scores, off = x @ x.T, ~torch.eye(2, dtype=torch.bool)
        pair = torch.tensor([[1], [0]])[torch.tensor([True, True])].bool()
        left = scores[off].view(2, 1), scores.masked_select(off).view(2, 1)
        assert left[0].masked_select(pair).shape == left[1][pair[:, 0], :1][..., 0].shape == (1,)
        rows, columns = torch.where(self.mask)
        assert len(rows) == len(self.mask.nonzero()) == len(torch.nonzero(self.mask, as_tuple=True)[1]) == 6
        assert x[:, columns[:3]].shape == x[:, None, :3][..., self.mask[2] > 0].squeeze(1).shape == (2, 3)
        return True


class SelectedByInput(Net):
    def asks(self, x: Tensor) -> bool | Tensor:
        return x[x > 0].shape[0] > 0


class SelectedByCount(Net):
    """The buffer changes behind the selection."""

    def asks(self, x: Tensor) -> bool | Tensor:
        left = x[:, (self.count < torch.arange(4) + 1)]
        self.count.add_(1)
        return left.shape[1] == 4


def captured(kind: type[Net]) -> Graph:
    torch.manual_seed(0)
    model = Model("net", kind(), ({"x": torch.randn(2, 4)},), {"x": ("batch", "feature")})
    graph = capture(model)
    check_capture(model, graph)
    return graph


@pytest.mark.parametrize(
    "kind",
    [
        LayerDrop,
        LayerDropAlways,
        LayersDropped,
        Masked,
        MaskedOtherwise,
        Number,
        Numbers,
        Equal,
        Checked,
        CheckedInEachStep,
        Selected,
    ],
)
def test_one_answer_is_given(kind: type[Net]) -> None:
    graph = captured(kind)
    assert sum(o.kind == "linear" for o in graph.operators) == 2
    read = {i.value for o in graph.operators for i in o.inputs}
    drawn = [o.outputs[0].value for o in graph.operators if o.target == "ssdsl::uniform"]
    assert read.isdisjoint(drawn), "nothing depends on what is drawn"


def test_an_answer_is_given_of_a_buffer_that_a_recipe_makes() -> None:
    graph = capture(model_of(lambda: Masked(), {"x": torch.randn(2, 4)}))
    assert sum(o.kind == "linear" for o in graph.operators) == 2


@pytest.mark.parametrize(
    "kind",
    [
        Sometimes,
        Seen,
        OfInput,
        NumberOfInput,
        EqualToInput,
        OfWeight,
        Counted,
        CountedBefore,
        SelectedByInput,
        SelectedByCount,
    ],
)
def test_a_question_with_several_answers_is_refused(kind: type[Net]) -> None:
    with pytest.raises(PlanError) as error:
        captured(kind)
    assert error.value.diagnostics[0].code == "E0330"
