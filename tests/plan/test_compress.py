"""`compress OPS by topk(8) along hidden`: what others read of operators is compressed, and so are gradients."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.compile import compile_evaluation, compile_lossless, compile_source
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.model.alter.run_graph import GraphModel, trained_model
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.record import as_dict
from ssdsl.run.verify.codes import unlike_codes
from ssdsl.run.verify.single_device import Trained, reference
from ssdsl.runtime.kernels.compression import decode, encode
from ssdsl.runtime.kernels.line_bytes import line_bytes
from ssdsl.runtime.options import Training
from ssdsl.show.tables.check import compressed_view
from ssdsl.show.tables.communication import communications
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import captured

GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
PLAN = "mesh gpus(pp = 2)\nlet stage = balance(model, 2)\n{}\nassign stage[s] to gpus[pp = s] for s in 0..2\n"
LINE = "compress stage[0] by topk(8) along hidden"


class Halves(nn.Module):
    """A product, a sum of it with what it reads, and another product of both."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        return (self.down(torch.relu(y)) + y.tanh().sum(1, keepdim=True)).square().mean()


class ByHand(nn.Module):
    """The same module, compressed by hand behind the first product."""

    def __init__(self, own: nn.Module, k: int | None, length: int) -> None:
        super().__init__()
        self.own, self.k, self.length = own, k, length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = decode(encode(self.own.up(x), 1, self.length, self.k), 1, 8, self.k)
        return (self.own.down(torch.relu(y)) + y.tanh().sum(1, keepdim=True)).square().mean()


def compiled(more: str, graph: Graph | None = None) -> Compiled:
    graph = captured(GPT)[1] if graph is None else graph
    return compile_source(Source("plan.ssp", PLAN.format(more)), graph, {}, Path())


def coding(graph: Graph) -> list[Operator]:
    return [o for o in graph.operators if o.kind in ("encode", "decode")]


def trained(model: Model, graph: Graph | None = None) -> Trained:
    if graph is not None:
        model = GraphModel(**as_dict(model), graph=graph)
    return reference(model, Training(steps=2, optimizer="sgd", lr=0.1))


@pytest.mark.parametrize(("how", "k", "length"), [("topk(3)", 3, 5), ("int8", None, 3)])
def test_one_device_computes_what_is_compressed_by_hand(how: str, k: int | None, length: int) -> None:
    torch.manual_seed(0)
    own = Halves()
    batches = ({"x": torch.randn(8, 8)},)
    model = Model("halves", own, batches, {"x": ("batch", "in")})
    graph = capture(model)
    up = next(o for o in graph.computing if o.path == "up")
    said = f'compress model["up"] by {how} along {up.dims[up.outputs[0].axes[1][0]].name}'
    text = f"mesh gpus(dp = 2)\nsplit model by batch into dp\n{said}\nassign model to gpus\n"
    found = compile_source(Source("plan.ssp", text), graph, {}, None)
    ours = trained(model, found.plan.graph)
    by_hand = trained(Model("by_hand", ByHand(own, k, length), batches, {"x": ("batch", "in")}))
    assert ours.losses == by_hand.losses != trained(model).losses
    for name, gradient in ours.grads[1].items():
        assert torch.equal(gradient, by_hand.grads[1][f"own.{name}"]), name


def test_of_equal_numbers_those_in_front_are_kept() -> None:
    x = torch.tensor([[1.0, -1.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    assert decode(encode(x, 1, 3, 2), 1, 4, 2).tolist() == [[1.0, -1.0, 0.0, 0.0], [0.0] * 4]
    assert decode(encode(x[:, :0], 0, 3, 2), 0, 2, 2).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_line_that_keeps_all_numbers_is_the_line(dtype: torch.dtype) -> None:
    x = torch.randn(3, 40_000).to(dtype)
    length = 40_000 * 3
    assert torch.equal(decode(encode(x, 1, length, 40_000), 1, 40_000, 40_000).view(torch.uint8), x.view(torch.uint8))
    assert decode(encode(x, 1, length), 1, 40_000)[1].sub(x[1]).abs().max() <= x[1].abs().max() / 100


def test_what_leaves_travels_in_fewer_bytes() -> None:
    """8 of 32 numbers with places of 16 bits are as long as 12 numbers: forward and, as a gradient, backward."""

    def sent(more: str) -> list[int]:
        return [c.size_bytes for c in communications(compiled(more).program) if c.kind == "send"]

    assert sent("") == [8 * 16 * 32 * 4] * 2
    assert sent(LINE) == [8 * 16 * 12 * 4] * 2


@pytest.mark.parametrize("k", [None, 3, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_codes_are_normal_numbers_in_any_type(dtype: torch.dtype, k: int | None) -> None:
    x = torch.randn(64, 48).to(dtype)
    code = encode(x, 1, -(-line_bytes(48, dtype.itemsize, k) // dtype.itemsize), k)
    assert code.isfinite().all() and torch.equal((code + 0).view(torch.uint8), code.view(torch.uint8))


def test_it_is_told_what_is_compressed() -> None:
    view = compressed_view(compiled(LINE).plan)
    assert [row[1:] for row in view.rows] == [("hidden", 32, 8, 12.0, 1)]
    assert "this plan trains another model" in view.notes[0]


def test_what_is_read_inside_is_read_as_it_is() -> None:
    graph = compiled('compress model["h.0.mlp.c_fc"] by int8 along ffn').plan.graph
    (_, read) = coding(graph)
    assert {o.path for o in graph.readers_of(read)} == {"transformer.h.0.mlp.act"}
    inside = compiled('compress model["h.0"] by int8 along hidden').plan.graph
    assert len(coding(inside)) == 2, "only the last sum leaves"


def test_an_evaluation_compresses_as_well() -> None:
    model, _ = captured(GPT)
    graph = compile_evaluation(compiled(LINE), model).program.graph
    assert [o.kind for o in coding(graph)] == ["encode", "decode"]


def test_with_all_numbers_it_is_the_model() -> None:
    model, graph = captured(GPT)
    found = compiled(LINE)
    assert found.plan.altered is not None
    lossless = compile_lossless(found.source, graph, {}, Path()).plan
    assert len(coding(lossless.graph)) == 2
    assert trained(trained_model(model, lossless.altered)).losses == trained(model).losses
    assert trained(trained_model(model, found.plan.altered)).losses != trained(model).losses


def test_parts_make_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiled(f"split model by batch into m = 2\n{LINE}")
    assert found.plan.altered is not None
    model, graph = captured(GPT)[0], found.plan.altered.graph
    assert unlike_codes(model, graph, found.program, seed=0) == (2, [])
    monkeypatch.setattr("ssdsl.run.verify.codes._cut", lambda operator, operand, x, at: torch.randn_like(x))
    assert unlike_codes(model, graph, found.program, seed=0)[1], "a part that is not that part is found"


def test_it_is_written_in_one_way() -> None:
    text = 'compress   model["h.0"]-model.add by topk( 2*4 ) along "h.*.x-y"\n'
    assert format_script(parse(Source("a.ssp", text))) == (
        'compress model["h.0"] - model.add by topk(2 * 4) along "h.*.x-y"\n'
    )


@pytest.mark.parametrize("more", ["let compress = model\nlet along = 2\nlet topk = 3", "let int8 = 1"])
def test_the_words_may_be_names(more: str) -> None:
    assert compiled(f"{more}\n{LINE}")


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        (LINE.replace("along", "over"), "E0126", "`along`"),
        (LINE.replace("compress", "compres"), "E0110", "`compress`"),
        (LINE.partition(" along")[0], "E0111", "the statement reads `compress operators by topk(64) along embed`"),
        ("precision model by 8", "E0111", "the statement reads `precision operators to bf16`"),
    ],
)
def test_other_words_are_mistakes(wrong: str, code: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(wrong)
    text = render(caught.value.diagnostics[0])
    assert code in text and says in text


@pytest.mark.parametrize(
    ("code", "wrong", "right"),
    [
        ("E0216", LINE.replace("topk(8)", "gzip"), LINE),
        ("E0249", LINE.replace("topk(8)", "topk(33)"), LINE.replace("topk(8)", "topk(32)")),
        ("E0249", LINE.replace("topk(8)", "topk(0 - 1)"), LINE.replace("topk(8)", "topk(0.25)")),
        ("E0291", f"{LINE}\ncompress stage[0] by int8 along hidden", LINE),
        ("E0293", LINE.replace("stage[0]", "model"), LINE),
        (
            "E0295",
            'compress model["h.0.attn.c_attn"].reshape by int8 along heads',
            'compress model["h.0.attn"] by int8 along hidden',
        ),
    ],
)
def test_a_mistake_and_what_its_help_says(code: str, wrong: str, right: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(wrong)
    assert code in re.findall(r"error\[(\w+)\]", render(caught.value.diagnostics[0]))
    assert compiled(right)
