"""A step's count of FLOPs is torch's own, forward and backward, except that causal attention computes half of its
scores, and that operators of which torch counts nothing count as well."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.model.products import forward_flops, gradient_flops, learning_operands, products, seen_share, step_flops
from tests.captured import captured, graph_of


class Layers(nn.Module):
    """Three layers, some of them frozen."""

    def __init__(self, *frozen: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in ((16, 32), (32, 24), (24, 8)))
        for number in frozen:
            self.layers[number].requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


class Lora(nn.Module):
    """A frozen layer with a trained correction of low rank, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.bases = nn.ModuleList(nn.Linear(16, 16, bias=False).requires_grad_(False) for _ in range(2))
        self.downs, self.ups = (nn.ModuleList(nn.Linear(*ends) for _ in range(2)) for ends in ((16, 2), (2, 16)))

    def forward(self, x):
        for base, down, up in zip(self.bases, self.downs, self.ups, strict=True):
            x = base(x) + up(down(x))
        return x.square().mean()


class Merged(nn.Module):
    """A product of weights alone is one of the step, too."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(16, 4)), nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        return (x @ (self.left @ self.right)).square().mean()


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2)
        self.back, self.head = nn.ConvTranspose2d(16, 4, 2, stride=2), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.back(self.second(self.first(x).relu()).relu()).mean((2, 3))).square().mean()


class Sums(nn.Module):
    """Einsums of two and of three factors, matrices by vectors' rows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(6, 10))
        self.heads = nn.Parameter(torch.randn(5, 8, 4))

    def forward(self, x):
        chain = torch.einsum("bi,ij,jk->bk", x, self.a, self.b) @ self.b.t()
        return chain.square().mean() + torch.einsum("bi,hij->bhj", x, self.heads).square().mean()


class Attention(nn.Module):
    """`learns` names the projections that train; without `projects`, keys and values are the input itself."""

    def __init__(self, learns: str = "qkv", causal: bool = False, projects: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(16, 16).requires_grad_(name in learns) for name in "qkv"})
        self.causal, self.projects = causal, projects

    def forward(self, x):
        def heads(name: str) -> torch.Tensor:
            own = self.layers[name](x) if name == "q" or self.projects else x
            return own.unflatten(-1, (4, 4)).transpose(1, 2)

        made = F.scaled_dot_product_attention(*map(heads, "qkv"), is_causal=self.causal)
        return made.square().mean()


class ByHand(nn.Module):
    """Attention written out: products, a softmax and a mask, of whose scores all are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("mask", torch.ones(8, 8).tril() == 0)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(self.mask, -1e9)
        return (scores.softmax(-1) @ v).square().mean()


ROWS = lambda: torch.randn(4, 8, 16)  # noqa: E731
PLAIN: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "layers": (Layers, lambda: torch.randn(8, 16)),
    "first frozen": (lambda: Layers(0), lambda: torch.randn(8, 16)),
    "first two frozen": (lambda: Layers(0, 1), lambda: torch.randn(8, 16)),
    "middle frozen": (lambda: Layers(1), lambda: torch.randn(8, 16)),
    "lora": (Lora, lambda: torch.randn(8, 16)),
    "merged": (Merged, lambda: torch.randn(8, 16)),
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 16, 16)),
    "einsums": (Sums, lambda: torch.randn(12, 8)),
    "attention": (Attention, ROWS),
    "queries alone": (lambda: Attention("q"), ROWS),
    "values alone": (lambda: Attention("v"), ROWS),
    "keys of the input": (lambda: Attention(projects=False), ROWS),
    "attention by hand": (ByHand, ROWS),
}


def counted_by_torch(model: Model) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.compute(model.batches[0]).backward()
    return counter.get_total_flops()


def counted(graph: Graph) -> float:
    return sum(step_flops(graph).values())


def of_kind(graph: Graph, kind: str) -> float:
    """The count of the operators of one kind."""
    own = [o for o in graph.operators if o.kind == kind]
    return sum(forward_flops(o) + sum(n for _, n in gradient_flops(o, learning_operands(graph, o))) for o in own)


@pytest.mark.parametrize("name", PLAIN)
def test_a_step_counts_what_torch_counts(name: str) -> None:
    module, batch = PLAIN[name]
    model = Model(name, module(), ({"x": batch()},), {"x": ()})
    assert counted(capture(model)) == counted_by_torch(model)


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "spec", ["bert:tiny", "vit:tiny", "t5:tiny", "resnet", "argus", pytest.param("alphafold2", marks=pytest.mark.slow)]
)
def test_models_of_the_zoo_count_what_torch_counts(spec: str) -> None:
    model, graph = captured(spec)
    assert counted(graph) == counted_by_torch(model)


@pytest.mark.parametrize(
    "spec", ["gpt:tiny", "llama:tiny,keys=2", "moe_gpt:tiny", pytest.param("mbart:tiny", marks=pytest.mark.slow)]
)
def test_causal_attention_counts_half_of_its_scores(spec: str) -> None:
    """Torch's math form computes all of them; mbart has attention of both kinds."""
    model, graph = captured(spec)
    causal = [o for o in graph.operators if seen_share(o) < 1]
    left_out = sum(3 * (o.flops - forward_flops(o)) for o in causal)
    assert left_out == sum(1.5 * o.flops for o in causal) > 0
    assert counted(graph) + left_out == counted_by_torch(model)


def test_experts_count_one_product_for_each_row() -> None:
    """Torch counts nothing of them: 2 experts for each of 256 tokens, two matrices in each, and three products."""
    model, graph = captured("mixtral:tiny")
    experts = of_kind(graph, "routed_mm")
    operators = [o for o in graph.operators if o.kind == "routed_mm"]
    assert experts == sum(3 * o.flops for o in operators) > 0
    causal = of_kind(graph, "scaled_dot_product_attention")
    assert counted(graph) == counted_by_torch(model) + experts - causal


def test_the_products_of_attention() -> None:
    """Scores of 4 x 4 heads and 8 x 8 positions, twice, and half of them if it is causal."""
    for causal, half in ((False, 1.0), (True, 0.5)):
        graph = capture(Model("a", Attention(causal=causal), ({"x": torch.randn(4, 8, 16)},), {"x": ()}))
        (attention,) = (o for o in graph.operators if o.kind == "scaled_dot_product_attention")
        scores, result = products(attention)
        assert scores.flops == result.flops == half * 2 * 4 * 4 * 8 * 8 * 4
        assert (scores.left, scores.right, result.left, result.right) == ((0,), 1, (0, 1), 2)


def test_attention_in_a_window_counts_the_scores_that_are_seen() -> None:
    """A query's own key and the two before it: 1 + 2 + 6 * 3 of 8 x 8."""
    graph = graph_of("flex.py:in_a_window")
    (attention,) = (o for o in graph.operators if o.kind == "scaled_dot_product_attention")
    assert forward_flops(attention) == attention.flops * 21 / 64


def test_a_step_without_backward_counts_the_forward() -> None:
    _, graph = captured("bert:tiny")
    assert sum(step_flops(graph, trains=False).values()) == counted(graph) / 3


def test_what_a_step_does_not_compute_is_not_counted() -> None:
    """Products of constants are computed once, and those of inputs alone are no work of the plan's devices."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            fixed = torch.ones(8, 8) @ torch.ones(8, 8)
            return (self.layer(x @ x.t() @ x) @ fixed).square().mean()

    graph = capture(Model("fixed", Fixed(), ({"x": torch.randn(8, 8)},), {"x": ()}))
    assert counted(graph) == (2 + 2) * 2 * 8**3  # the layer's two products, and two with the constant: dx and y
