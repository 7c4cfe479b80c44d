"""Dimensions have the names that a person would give them, whatever stands beside the operators that have them."""

import importlib.util
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssdsl.model.graph import Graph, Stage
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from tests.captured import graph_of

needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
TOKENS = {"input_ids": ("batch", "seq"), "labels": ("batch", "seq")}
IMAGE = {"pixel_values": ("batch", "channels", "height", "width"), "labels": ("batch",)}
VECTORS = {"x": ("batch", "in"), "y": ("batch", "out")}


def named(graph: Graph, path: str, kind: str) -> list[str]:
    """The dimensions of the first operator of this kind beneath a module, but for `batch`."""
    op = next(o for o in graph.operators if o.path.startswith(path) and o.kind == kind)
    return [d.name for d in op.dims if d.name != "batch" and d.size > 1]


def axis(graph: Graph, weight: str, at: int) -> list[str]:
    return [graph.dim_names[cls] for cls in graph.values[weight].factors[at]]


class Mlp(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return F.mse_loss(self.layers[-1](x), y)


def mlp(*sizes: int) -> Graph:
    batch = {"x": torch.randn(8, sizes[0]), "y": torch.randn(8, sizes[-1])}
    return capture(Model("mlp", Mlp(*sizes), (batch,), VECTORS))


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_of_two_neighbours_one_is_ffn(depth: int) -> None:
    """Whatever follows, the first two projections are cut as a pair; so are the next two."""
    graph = mlp(16, *[32] * (depth - 1), 8)
    between = ["ffn", "hidden", "ffn", "hidden"][: depth - 1]
    assert [axis(graph, f"layers.{i}.weight", 0) for i in range(depth)] == [*([name] for name in between), ["out"]]


class Residual(nn.Module):
    """Layers without norms: what they hand on is no `ffn`, though it lies between projections."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 4)
        self.rise = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.fall = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for rise, fall in zip(self.rise, self.fall, strict=True):
            x = x + fall(F.gelu(rise(x)))
        return F.mse_loss(self.last(x), y)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_stream_between_layers_is_hidden(layers: int) -> None:
    batch = {"x": torch.randn(8, 4), "y": torch.randn(8, 4)}
    graph = capture(Model("residual", Residual(layers), (batch,), VECTORS))
    assert axis(graph, "first.weight", 0) == axis(graph, f"fall.{layers - 1}.weight", 0) == ["hidden"]
    assert axis(graph, f"rise.{layers - 1}.weight", 0) == ["ffn"]


class Experts(nn.Module):
    """Each expert sees each token, weighed by the gate; the classes are no words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate, self.head = nn.Embedding(64, 16), nn.Linear(16, 4), nn.Linear(16, 5)
        self.rise, self.fall = nn.Parameter(torch.randn(4, 16, 32)), nn.Parameter(torch.randn(4, 32, 16))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        inside = torch.einsum("bsh,ehf->besf", x, self.rise).relu()
        each = torch.einsum("besf,efh->besh", inside, self.fall)
        mixed = torch.einsum("besh,bse->bsh", each, self.gate(x).softmax(-1))
        return F.cross_entropy(self.head(mixed).flatten(0, 1), labels.flatten())


def test_experts_and_classes() -> None:
    ids = torch.randint(64, (2, 8))
    graph = capture(Model("experts", Experts(), ({"input_ids": ids, "labels": ids % 5},), TOKENS))
    assert [axis(graph, "rise", at) for at in range(3)] == [["experts"], ["hidden"], ["ffn"]]
    assert axis(graph, "gate.weight", 0) == ["experts"]
    assert (axis(graph, "words.weight", 0), axis(graph, "head.weight", 0)) == (["vocab"], ["classes"])


class Fused(nn.Module):
    """Attention whose queries, keys and values come from one projection, taken apart as a number says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.words, self.norm, self.how = nn.Embedding(64, 16), nn.LayerNorm(16), how
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 64)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        fused = self.qkv(self.norm(x))
        parts = fused.split(16, -1) if self.how == "split" else [fused[..., at : at + 16] for at in (0, 16, 32)]
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@needs_transformers
def test_experts_whose_weights_are_transposed() -> None:
    """Mixtral's: a fused projection of each expert, applied to rows that name their expert."""
    graph = graph_of("mixtral:tiny")
    experts = "model.layers.0.mlp.experts"
    assert axis(graph, f"{experts}.gate_up_proj", 0) == axis(graph, f"{experts}.down_proj", 0) == ["experts"]
    assert axis(graph, f"{experts}.gate_up_proj", 1) == ["gate_up", "ffn"]
    assert axis(graph, f"{experts}.down_proj", 2) == ["ffn"]


@pytest.mark.parametrize("how", ["split", "slices"])
def test_a_fused_projection_has_heads(how: str) -> None:
    ids = torch.randint(64, (2, 8))
    graph = capture(Model("fused", Fused(how), ({"input_ids": ids, "labels": ids},), TOKENS))
    assert axis(graph, "qkv.weight", 0) == ["qkv", "heads", "head_dim"]
    linear = next(o for o in graph.operators if o.path == "qkv")
    assert not any(d.fixed for d in linear.dims if d.name == "heads")


def test_convolutions() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)

        def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            x = F.max_pool2d(self.norm(self.first(pixel_values)).relu(), 2)
            return F.cross_entropy(self.second(x).mean((2, 3)), labels)

    batch = {"pixel_values": torch.randn(2, 3, 12, 12), "labels": torch.randint(4, (2,))}
    graph = capture(Model("convolutions", Net(), (batch,), IMAGE))
    assert [axis(graph, "first.weight", at)[0] for at in range(4)] == [
        "channels",
        "channels",
        "kernel_height",
        "kernel_width",
    ]
    assert {"channels.0", "channels.1", "height", "height.window"} <= set(named(graph, "first", "conv2d"))
    assert axis(graph, "second.weight", 0) == ["classes"]


@needs_transformers
def test_self_attention_with_a_bias_has_heads() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 96}
    config = T5Config(**sizes, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0, pad_token_id=0)
    batch = {"input_ids": torch.randint(5, 96, (2, 12)), "labels": torch.randint(5, 96, (2, 10))}
    axes = {"input_ids": ("batch", "seq"), "labels": ("batch", "target")}
    graph = capture(Model("t5", T5ForConditionalGeneration(config), (batch,), axes))
    for attention in ("encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"):
        assert axis(graph, f"{attention}.q.weight", 0) == ["heads", "head_dim"]


@needs_transformers
@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_patches_and_a_class_token_are_a_sequence(dropped: float) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16}
    sizes |= {"attention_probs_dropout_prob": dropped, "intermediate_size": 64, "patch_size": 4}
    module = ViTForImageClassification(ViTConfig(**sizes, num_labels=5))
    batch = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(5, (2,))}
    graph = capture(Model("vit", module, (batch,), IMAGE))
    norm = next(o for o in graph.operators if o.kind == "layer_norm" and o.stage is Stage.COMPUTE)
    assert ("seq", 17) in [(d.name, d.size) for d in norm.dims]
    assert axis(graph, "classifier.weight", 0) == ["classes"]


class Pixels(nn.Module):
    """A U-Net's attention over the pixels of a smaller image."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.qkv = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 24, 1)
        self.up = nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(x)
        q, k, v = (t.flatten(2).transpose(1, 2)[:, None] for t in self.qkv(y).chunk(3, 1))
        seen = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(y.shape)
        return (self.up(y + seen) - x).square().mean()


def test_pixels_under_attention_are_called_as_those_of_convolutions() -> None:
    axes = {"x": ("batch", "colour", "height", "width")}
    graph = capture(Model("pixels", Pixels(), ({"x": torch.randn(2, 3, 8, 12)},), axes))
    names = named(graph, "", "scaled_dot_product_attention")
    assert {"height.0", "width.0", "height.1", "width.1"} <= set(names)
    assert not any("window" in name for name in names)


class LoRA(nn.Module):
    """A frozen projection, and beside it two small ones: as modules, or as weights of which products are taken."""

    def __init__(self, base: nn.Linear, as_modules: bool) -> None:
        super().__init__()
        ends = base.out_features, base.in_features
        self.base, self.as_modules = base.requires_grad_(False), as_modules
        self.a, self.b = nn.Parameter(torch.randn(4, ends[1])), nn.Parameter(torch.randn(ends[0], 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.as_modules:
            return self.base(x) + 2 * F.linear(F.linear(x, self.a), self.b)
        return self.base(x) + x @ self.a.T @ self.b.T


class Adapted(nn.Module):
    def __init__(self, as_modules: bool) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(64, 16), nn.LayerNorm(16), nn.Linear(16, 64)
        self.qkv, self.out, self.rise, self.fall = (
            LoRA(nn.Linear(a, b), as_modules) for a, b in ((16, 48), (16, 16), (16, 32), (32, 16))
        )

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.fall(F.gelu(self.rise(x)))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def tokens(module: nn.Module) -> Graph:
    ids = torch.randint(64, (2, 8))
    return capture(Model("tokens", module, ({"input_ids": ids, "labels": ids},), TOKENS))


@pytest.mark.parametrize("as_modules", [True, False])
def test_the_width_of_an_adapter_is_a_rank(as_modules: bool) -> None:
    graph = tokens(Adapted(as_modules))
    for name in ("qkv", "out", "rise", "fall"):
        assert (axis(graph, f"{name}.a", 0), axis(graph, f"{name}.b", 1)) == (["rank"], ["rank"])
    assert axis(graph, "rise.base.weight", 0) == axis(graph, "fall.a", 1) == ["ffn"]


def test_of_two_widths_the_wider_one_is_ffn() -> None:
    """A feed-forward whose projections are products of two: there is no third that does the same at once."""
    graph = mlp(16, 4, 32, 4, 16, 8)
    assert [axis(graph, f"layers.{n}.weight", 0)[0] for n in range(4)] == ["hidden", "ffn", "hidden", "ffn"]


class Divided(nn.Module):
    """Projections whose weights are divided by a norm, or multiplied by lengths of their own, at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 32))
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(32, 16))
        self.low, self.high = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.randn(24, 2))
        self.third, self.last = nn.Parameter(torch.randn(24, 16)), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x).relu()).relu()
        merged = self.third + self.high @ self.low
        return F.cross_entropy(self.last(F.linear(x, merged / merged.norm(dim=1, keepdim=True)).relu()), y)


def test_a_computed_weight_is_a_weight() -> None:
    batch = {"x": torch.randn(4, 8), "y": torch.randint(3, (4,))}
    graph = capture(Model("divided", Divided(), (batch,), {"x": ("batch", "in"), "y": ("batch",)}))
    widths = [axis(graph, f"{name}.bias", 0) for name in ("first", "second")] + [axis(graph, "last.weight", 1)]
    assert widths == [["ffn"], ["hidden"], ["ffn"]]


class Linear(nn.Module):
    """Attention without a softmax, behind a convolution along the sequence of each channel by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.conv = nn.Conv1d(48, 48, 3, groups=48, padding=1)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        mixed = self.conv(self.qkv(x).transpose(1, 2)).transpose(1, 2)
        q, k, v = (t.transpose(1, 2) for t in mixed.unflatten(-1, (3, 4, 4)).unbind(2))
        seen = q @ (k.transpose(-1, -2) @ v)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_attention_without_a_softmax_has_heads() -> None:
    graph = tokens(Linear())
    assert axis(graph, "qkv.weight", 0) == axis(graph, "conv.weight", 0) == ["qkv", "heads", "head_dim"]
    assert axis(graph, "out.weight", 1) == ["heads", "head_dim"]
