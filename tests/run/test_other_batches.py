"""A program for a batch of another size runs on the same weights: their parts, flat parameters, devices are equal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ssdsl.compile import compile_evaluation, compile_plan, compile_resized, compile_source
from ssdsl.ir.program import Program
from ssdsl.lower.lower import lower
from ssdsl.model.load import load
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.neighbours.carry_over import carry_over
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
GATHERED = """mesh gpus(sp = 2)
split model by batch into m = 2
split model["up"] by seq into sp
assign model to gpus
"""
APART = """mesh gpus(dp = 2)
split model["up"] by batch into dp
split model["down"] by seq into dp
assign model to gpus
"""
SGD = Training(2, optimizer="sgd", lr=0.1)
PLANS = [("data_parallel", {}), ("megatron", {"D": 1}), ("zero", {"Z": 1}), ("zero", {"Z": 3}), ("pipeline", {})]


@pytest.fixture(scope="module")
def of_batch() -> Callable[[int], Model]:
    """The model with that many rows in its batches."""
    model = load(GPT)

    def cut(rows: int) -> Model:
        batches = tuple({n: t[:rows] for n, t in batch.items()} for batch in model.batches)
        return replace(model, batches=batches)

    return cut


def _compiled(model: Model, plan: str, params: dict[str, int]) -> Compiled:
    return compile_plan(EXAMPLES / f"{plan}.ssp", capture(model), params)


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("plan", "params"), PLANS, ids=str)
def test_the_state_is_the_same(of_batch: Callable[[int], Model], plan: str, params: dict[str, int]) -> None:
    whole, last = (_compiled(of_batch(rows), plan, params) for rows in (8, 4))
    assert last.program.flats == whole.program.flats
    assert last.program.params == whole.program.params
    assert [r.submesh for r in last.program.roles] == [r.submesh for r in whole.program.roles]
    evaluation = compile_evaluation(whole, of_batch(4), ["logits"]).program
    assert (evaluation.flats, evaluation.params) == (whole.program.flats, whole.program.params)
    assert evaluation.graph.values["labels"].shape[0] == 4


# -- batches that equal parts do not divide ----------------------------------------------------------------------------


class Net(nn.Module):
    """Merges batch and sequence between its layers; returns its scores, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.up, self.down, self.head = nn.Embedding(16, 8), *(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        h = torch.relu(self.up(self.tokens(x).flatten(0, 1)))
        scores = self.head(h + self.down(h))
        return {"loss": nn.functional.cross_entropy(scores, y.flatten()), "scores": scores}


def net(rows: int) -> Model:
    draw = torch.Generator().manual_seed(1)
    batch = {name: torch.randint(8, (rows, 4), generator=draw) for name in ("x", "y")}
    return model_of(Net(), batch, {"x": ("batch", "seq"), "y": ("batch", "seq")})


def resized(text: str, rows: int) -> tuple[Compiled, Compiled]:
    """A plan for 8 samples, and what becomes of it for another number."""
    training = compile_source(Source("a.ssp", text), capture(net(8)), {}, EXAMPLES)
    return training, compile_resized(training, capture(net(rows)))


def is_right(program: Program, model: Model) -> bool:
    finished = run_in_process(program_of(program, model), SGD)
    return difference(verify_dumps(model, SGD, finished.losses, finished.dumps)) is None


CUTS = {  # of a batch of 8, and what other numbers of samples are tried
    "split model by batch into dp": (5, 1),
    "split model by batch into dp\nsplit model.weights by row into dp": (5, 1),
    "split model by batch into dp, m = 2": (6, 5, 9, 1),  # 3 and 3 of 2 and 1; 3 and 2; 6 and 3 of three thirds
    "split model by batch into m = 4, dp": (6, 10),
    'split model["up"] by batch into m = 4\nsplit model by batch into dp': (9,),  # 2 and 1 of a third, 6 and 3 of all
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("text", "rows"), [(text, n) for text, tried in CUTS.items() for n in tried])
def test_a_batch_of_any_size_trains_right(text: str, rows: int) -> None:
    training, found = resized(f"mesh gpus(dp = 2)\n{text}\nassign model to gpus\n", rows)
    assert is_right(found.program, net(rows))
    assert [f.weights for f in found.program.flats] == [f.weights for f in training.program.flats]
    assert [p.layout for p in found.program.params] == [p.layout for p in training.program.params]


STATED = {  # of a batch of 8, another number of samples, and the sizes of the parts
    "into dp = [6, 2]": (12, {(((0, 9),), ((9, 12),))}),
    "into dp = [6, 2], m = 2": (12, {None, (((0, 4),), ((4, 6),))}),  # of each micro-batch
    "into dp parts [[0, 3], [1, 2]]": (11, {(((0, 2), (8, 11)), ((2, 8),))}),
    "into dp = [7, 1]": (2, {None}),  # 1 and 1
    "into dp = [1, 7]": (5, {(((0, 3),), ((3, 5),))}),  # a part would be empty
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("text", STATED)
def test_stated_parts_keep_their_shares(text: str) -> None:
    rows, expected = STATED[text]
    _, found = resized(f"mesh gpus(dp = 2)\nsplit model by batch {text}\nassign model to gpus\n", rows)
    assert {i.digit.at for record in found.plan.operators.values() for i in record.indices} == expected
    assert is_right(found.program, net(rows))


def test_what_is_made_of_inputs_is_cut_as_what_reads_it() -> None:
    """Labels are flattened on three devices, which four samples in six parts would leave two of."""
    text = "mesh gpus(dp = 3)\nsplit model by batch into dp, m = 2\nassign model to gpus\n"
    training = compile_source(Source("a.ssp", text), capture(net(6)), {}, EXAMPLES)
    assert is_right(compile_resized(training, capture(net(4))).program, net(4))


def test_unequal_parts_that_cannot_be_are_left_out() -> None:
    """The sequence is cut in one layer, inside of an axis that it makes with the batch: its parts lie elsewhere in each
    micro-batch (E0406)."""
    training, found = resized(GATHERED, 5)
    with pytest.raises(PlanError, match="E0406"):
        lower(carry_over(training.plan, capture(net(5)), trains=True))
    assert {i.name for record in found.plan.operators.values() for i in record.indices} == {"sp"}
    assert is_right(found.program, net(5))


def test_orders_are_those_of_the_parts_that_are_left() -> None:
    training = _compiled(net(8), "pipeline", {"M": 4})
    found = {n: compile_resized(training, capture(net(n))) for n in (7, 3, 1)}
    named = {n: {at for order in one.plan.orders for _, at in order.after.fixed} for n, one in found.items()}
    assert named == {7: {0, 1, 2, 3}, 3: {1, 2}, 1: set()}
    assert all(is_right(one.program, net(n)) for n, one in found.items())


def test_weights_that_lie_together_are_summed_alike(golden: Callable[[Path, str], None]) -> None:
    training = compile_source(Source("apart.ssp", APART), capture(net(8)), {}, None)
    with pytest.raises(PlanError) as raised:
        compile_resized(training, capture(net(1)))
    golden(Path(__file__).parent.parent / "errors" / "E0525.err", render(raised.value.diagnostics[0]) + "\n")


def test_an_evaluation_is_split_where_its_batch_has_a_sample_for_each_device() -> None:
    training = _compiled(net(8), "data_parallel", {})
    for rows, part in ((6, "3"), (5, "n_dp"), (1, "1")):
        (prologue,) = compile_evaluation(training, net(rows)).program.prologues
        assert {str(v.shape[0]) for v in prologue.given} == {part}


def test_a_batch_that_does_not_divide(of_batch: Callable[[int], Model]) -> None:
    with pytest.raises(PlanError) as raised:
        _compiled(of_batch(3), "data_parallel", {})
    (found,) = raised.value.diagnostics
    text = render(found)
    assert found.code == "E0203" and "batch = 3" in text and "choose a divisor of 3: D = 3" in text
