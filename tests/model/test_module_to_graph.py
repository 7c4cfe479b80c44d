"""Discovery: the dimensions of models that are well known, and that no ordinary model lacks a rule."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph, Stage
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.text.diagnostic import PlanError
from tests.captured import captured
from tests.model.parts import outside, run_graph

needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
TOKENS = {"input_ids": ("batch", "seq"), "labels": ("batch", "seq")}
IMAGE = {"x": ("batch", "channels", "height", "width"), "labels": ("batch",)}
Case = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


def axes_of(graph: Graph, value: str) -> list[list[tuple[str, int]]]:
    """The named factors of each axis of a value."""
    v = graph.values[value]
    named = [[graph.dim_names[c] for c in axis] for axis in v.factors]
    return [list(zip(a, s, strict=True)) for a, s in zip(named, v.sizes, strict=True)]


@needs_transformers
def test_gpt() -> None:
    model, graph = captured("gpt:tiny")
    config: Any = model.module.config
    (hidden, fused) = axes_of(graph, "transformer.h.0.attn.c_attn.weight")
    assert [n for n, _ in hidden] == ["hidden"]
    assert [s for _, s in fused] == [3, config.n_head, config.n_embd // config.n_head]
    assert [n for n, _ in fused][1:] == ["heads", "head_dim"]
    assert [n for n, _ in axes_of(graph, "transformer.h.0.mlp.c_fc.weight")[1]] == ["ffn"]
    assert [axis[0][0] for axis in axes_of(graph, "transformer.wte.weight")] == ["vocab", "hidden"]
    assert [axis[0][0] for axis in axes_of(graph, "transformer.wpe.weight")] == ["positions", "hidden"]
    assert "lm_head.weight" not in graph.values, "tied to the embedding"
    for name in ("heads", "ffn", "vocab", "batch"):
        fixed = [
            o.name for o in graph.operators for d in o.dims if d.name == name and d.fixed and o.stage is Stage.COMPUTE
        ]
        assert not fixed, f"{name} cannot be split in {fixed}"


@needs_transformers
def test_swin() -> None:
    _, graph = captured("swin:tiny")
    assert {"batch", "heads", "head_dim", "hidden", "ffn", "classes"} <= set(graph.dim_names.values())
    for name in ("heads", "ffn", "classes", "batch"):
        assert not any(d.name == name and d.fixed for o in graph.operators for d in o.dims if o.stage is Stage.COMPUTE)


@needs_transformers
def test_llama_with_grouped_queries() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    ids = torch.randint(64, (2, 8))
    graph = check(LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}, TOKENS)
    layer = "model.layers.0.self_attn"
    assert [s for _, s in axes_of(graph, f"{layer}.q_proj.weight")[0]] == [2, 2, 8]
    assert (
        axes_of(graph, f"{layer}.q_proj.weight")[0][0] == axes_of(graph, f"{layer}.k_proj.weight")[0][0] == ("heads", 2)
    )
    assert axes_of(graph, "model.layers.0.mlp.gate_proj.weight")[0] == [("ffn", 48)]


def check(module: nn.Module, batch: dict[str, torch.Tensor], axes: dict[str, tuple[str, ...]]) -> Graph:
    """The graph of a model, which computes the model's loss, and whose batch can be split everywhere."""
    module.train()
    graph = capture(Model("model", module, (batch,), axes))
    loss = run_graph(graph, outside(graph, module, batch))[graph.loss]
    result = module(**batch)
    torch.testing.assert_close(loss, getattr(result, "loss", result))
    whole = [
        o.name for o in graph.operators for d in o.dims if d.name == "batch" and d.fixed and o.stage is Stage.COMPUTE
    ]
    assert not whole, f"the batch cannot be split in {whole}"
    return graph


class Preferred(nn.Module):
    """Two answers go through one network together, and their scores are compared (DPO's loss)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        better, worse = self.net(torch.cat([chosen, rejected])).chunk(2)
        return -F.logsigmoid(better - worse).mean()


def test_batches_that_are_joined_and_taken_apart_again() -> None:
    batch = {"chosen": torch.randn(4, 6), "rejected": torch.randn(4, 6)}
    graph = check(Preferred(), batch, dict.fromkeys(batch, ("batch", "feature")))
    learning = [o for o in graph.operators if "net" in o.path]
    assert learning and all("batch" in (d.name for d in o.dims) for o in learning)


class Classifier(nn.Module):
    """Any network of images, with its loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), labels)


class Residual(nn.Module):
    """A block of ResNet, its activations in place."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU(True)
        )
        self.second = nn.Sequential(nn.Conv2d(made, made, 3, padding=1), nn.BatchNorm2d(made))
        self.short = nn.Conv2d(given, made, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x))
        y += self.short(x)
        return F.relu_(y)


class Mixer(nn.Module):
    """MLP-Mixer over 4 x 4 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norms[1](x))).mean(1)  # type: ignore[no-any-return]


class Vit(nn.Module):
    """A vision transformer of PyTorch's own layers, its class token repeated over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.zeros(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.repeat(len(x), 1, 1), x], 1) + self.positions
        return self.encoder(x)[:, 0]  # type: ignore[no-any-return]


class UNet(nn.Module):
    """One level down and up, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Conv2d(8, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.leave = nn.Conv2d(24, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.enter(x)
        b = F.relu(self.down(a))
        c = torch.cat([a, self.up(b), F.interpolate(b[:, :8], scale_factor=2, mode="bilinear")], 1)
        return self.leave(c).amax((2, 3))  # type: ignore[no-any-return]


class Translator(nn.Module):
    """An encoder and a decoder, a padded vocabulary that both and the classifier share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32, padding_idx=0)
        self.trunk = nn.Transformer(32, 4, 2, 2, 64, 0.0, batch_first=True)
        self.out = nn.Linear(32, 64, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        source, target = (self.table(ids) * math.sqrt(32) for ids in (x, y))
        found = self.trunk(source, target, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=x == 0)
        return F.cross_entropy(self.out(found).transpose(1, 2), labels, ignore_index=0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 16, batch_first=True)
        self.out = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.out(self.gru(self.lstm(self.table(x))[0])[0]).transpose(1, 2), labels)


class Experts(nn.Module):
    """Every expert computes every token; a gate weighs the best two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.rise = nn.Parameter(torch.randn(4, 16, 32) / 8)
        self.fall = nn.Parameter(torch.randn(4, 32, 16) / 8)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = torch.zeros(*x.shape[:2], 4).scatter(-1, chosen, scores)
        made = torch.einsum("esf,efd->esd", torch.einsum("bsd,edf->ebsf", x, self.rise).relu().flatten(1, 2), self.fall)
        mixed = torch.einsum("ebsd,bse->bsd", made.unflatten(1, x.shape[:2]), weights)
        return F.cross_entropy(mixed.flatten(0, 1), labels.flatten())


def images(*layers: nn.Module) -> Case:
    return Classifier(*layers), {"x": torch.randn(4, 3, 16, 16), "labels": torch.randint(8, (4,))}, IMAGE


def tokens(module: nn.Module, *names: str) -> Case:
    ids = {name: torch.randint(1, 64, (2, 6)) for name in names}
    return module, ids, dict.fromkeys(names, ("batch", "seq"))


MODELS: dict[str, Callable[[], Case]] = {
    "resnet": lambda: images(
        Residual(3, 8, 1), nn.MaxPool2d(2), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8)
    ),
    "mixer": lambda: images(Mixer(), nn.Linear(32, 8)),
    "vit": lambda: images(Vit(), nn.Linear(32, 8)),
    "unet": lambda: images(UNet()),
    "encoder-decoder": lambda: tokens(Translator(), "x", "y", "labels"),
    "recurrent": lambda: tokens(Recurrent(), "x", "labels"),
    "experts": lambda: (
        Experts(),
        {"x": torch.randn(2, 6, 16), "labels": torch.randint(16, (2, 6))},
        {"x": ("batch", "seq", "hidden"), "labels": ("batch", "seq")},
    ),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", MODELS)
def test_no_rule_is_missing_in(name: str) -> None:
    torch.manual_seed(0)
    check(*MODELS[name]())


@pytest.mark.slow
@needs_transformers
def test_no_rule_is_missing_in_t5() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    ids = torch.randint(1, 64, (2, 8))
    graph = check(T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}, TOKENS)
    assert {"heads", "ffn", "vocab"} <= set(graph.dim_names.values())


@pytest.mark.parametrize(
    "spec", ["gpt:tiny,attention=eager", "swin", str(Path(__file__).parent.parent / "models" / "convnet.py") + ":unet"]
)
def test_flops_are_those_of_pytorch(spec: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = load(spec)
    with FlopCounterMode(display=False) as counter:
        model.module(**model.batches[0])
    counted = sum(o.flops for o in capture(model).operators if o.row.contraction)
    assert counted == counter.get_total_flops()


def test_an_input_and_a_weight_of_one_name() -> None:
    with pytest.raises(PlanError, match="E0330"):
        capture(load(str(Path(__file__).parent.parent / "models" / "root_names.py") + ":same_name"))


class Pooled(nn.Module):
    """Adaptive pooling of a line, a plane and a volume of eight positions each way."""

    def __init__(self, results: int) -> None:
        super().__init__()
        self.results, self.scale = results, nn.Parameter(torch.ones(()))

    def forward(self, line: torch.Tensor, plane: torch.Tensor, volume: torch.Tensor) -> torch.Tensor:
        means, maxima = (
            (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
            (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
        )
        given = [x * self.scale for x in (line, plane, volume)]
        total = sum(
            f(x, self.results).square().mean() for f, x in zip((*means, *maxima), (*given, *given), strict=True)
        )
        places = [f(x, self.results, return_indices=True)[1] for f, x in zip(maxima, given, strict=True)]
        return total + sum((y * x.mean()).mean() for x, y in zip(given, places, strict=True))


@pytest.mark.parametrize(("results", "is_equal"), [(4, True), (3, False)])
def test_adaptive_pooling_with_equal_windows_is_pooling(results: int, is_equal: bool) -> None:
    torch.manual_seed(0)
    names = ("line", "plane", "volume")
    inputs = {name: torch.randn(2, 3, *[8] * rank) for rank, name in enumerate(names, start=1)}
    space = ("depth", "height", "width")
    axes = {name: ("batch", "channels", *space[-rank:]) for rank, name in enumerate(names, start=1)}
    model = Model("pooled", Pooled(results), (inputs,), axes)
    graph = capture(model)
    check_capture(model, graph)
    pools = [o for o in graph.operators if "pool" in o.kind]
    assert len(pools) == 9
    for pool in pools:
        assert pool.kind.startswith("adaptive") != is_equal
        (last,) = pool.outputs[0].axes[-1]
        assert (not pool.dims[last].fixed) == is_equal
