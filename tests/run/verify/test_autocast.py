"""Autocast regions in a forward: modules, names and plans are those without them, the tolerance that of the type."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ssdsl
import ssdsl.model.load.unmaterialised as deferred
from bench.fuzz.trial import try_plan
from bench.models.plans import PLANS
from ssdsl.lang.assets import assets_folder
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.run.in_process.precision import precision
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError

WIDTH, HEADS, LAYERS, VOCAB, SEQ = 32, 4, 2, 64, 16
TRIED = {**PLANS, **{n: (assets_folder("examples") / f"{n}.ssp").read_text() for n in ("megatron", "data_parallel")}}
TOKENS = torch.randint(VOCAB, (8, SEQ + 1))
BATCH = TOKENS[:, :-1].contiguous(), TOKENS[:, 1:].contiguous()
AXES = {"idx": ("batch", "seq"), "targets": ("batch", "seq")}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (z.unflatten(2, (HEADS, -1)).transpose(1, 2) for z in self.attn(self.norm1(x)).split(WIDTH, 2))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.drop(self.proj(h.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """As many are written: the whole forward in one region, logits and loss returned."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.embed, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(idx.device.type, self.dtype) if self.dtype else contextlib.nullcontext():
            x = self.embed(idx) + self.places(torch.arange(idx.shape[1], device=idx.device))
            for block in self.h:
                x = block(x)
            logits = self.head(self.norm(x))
            return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def model(dtype: torch.dtype | None, whole: torch.dtype | None = None) -> Model:
    torch.manual_seed(0)
    return ssdsl.model_of(Gpt(dtype), BATCH, AXES, autocast=whole)


@pytest.fixture(scope="module", params=["bfloat16", "float16", "whole"])
def casting(request: pytest.FixtureRequest) -> tuple[Model, Graph]:
    given = model(None, torch.bfloat16) if request.param == "whole" else model(getattr(torch, request.param))
    return given, capture(given)


@pytest.mark.thinned(26)
@pytest.mark.parametrize("plan", TRIED)
def test_plans_train_as_one_device(casting: tuple[Model, Graph], plan: str) -> None:
    for optimizer in ("sgd", "adamw"):
        outcome = try_plan(*casting, TRIED[plan], Training(2, optimizer=optimizer, lr=0.01))
        assert outcome.kind == "equal", outcome.text


def test_modules_and_names_are_those_without_it(casting: tuple[Model, Graph]) -> None:
    given, graph = casting
    plain = capture(model(None))
    assert precision(given) == (given.autocast or given.module.dtype)
    assert [(o.kind, o.path) for o in graph.operators if o.kind != "_to_copy"] == [
        (o.kind, o.path) for o in plain.operators if o.kind != "_to_copy"
    ]
    assert set(graph.dim_names.values()) == set(plain.dim_names.values())
    for name, _ in given.module.named_parameters():
        axes = [[[g.dim_names[leaf] for leaf in axis] for axis in g.values[name].factors] for g in (graph, plain)]
        assert axes[0] == axes[1], name


@pytest.mark.thinned(6)
def test_a_wrong_plan_is_found(casting: tuple[Model, Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tolerance of a coarse type is no licence: a gradient that is a hundredth too small shows."""
    from ssdsl.run.verify import verify

    given, graph = casting
    assemble = verify.assemble

    def smaller(what: str, ranks: dict[int, dict[str, object]]) -> object:
        whole = assemble(what, ranks)
        if "gradient" in what:
            whole.tensors["h.1.up.weight"] *= 0.99
        return whole

    monkeypatch.setattr(verify, "assemble", smaller)
    outcome = try_plan(given, graph, PLANS["data"], Training(1, optimizer="sgd", lr=0.01))
    assert outcome.kind == "wrong" and "h.1.up.weight" in outcome.text


def test_without_numbers_a_region_for_another_device_is_refused() -> None:
    class Elsewhere(Gpt):
        def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.autocast("cuda", torch.bfloat16):
                return super().forward(idx, targets)

    with pytest.raises(PlanError, match="this autocast is for `cuda`"):
        capture(ssdsl.model_of(lambda: Elsewhere(None), BATCH, AXES))


@pytest.mark.slow
def test_without_numbers_it_casts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LARGE", 64)
    for hollow in (
        ssdsl.model_of(lambda: Gpt(torch.bfloat16), BATCH, AXES),
        ssdsl.model_of(lambda: Gpt(None), BATCH, AXES, autocast=torch.bfloat16),
    ):
        graph = capture(hollow)
        dtypes = {o.kind: graph.values[o.outputs[0].value].dtype for o in graph.operators}
        assert dtypes["linear"] == "bfloat16" and dtypes["layer_norm"] == "float32"
        outcome = try_plan(hollow, graph, PLANS["tensor"], Training(2, optimizer="sgd", lr=0.01))
        assert outcome.kind == "equal", outcome.text
