"""A program for a batch of another size runs on the same weights: their parts, flat parameters, devices are equal."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ssdsl.compile import Compiled, compile_evaluation, compile_plan
from ssdsl.model.load import load
from ssdsl.model.source import Model
from ssdsl.model.trace import capture
from ssdsl.run.in_process import program_of, run_in_process
from ssdsl.run.launch import Training
from ssdsl.run.verify import difference, verify_dumps
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
GPT = "gpt:tiny,layers=2"
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


@pytest.mark.parametrize(("plan", "params"), PLANS, ids=str)
def test_the_state_is_the_same(of_batch: Callable[[int], Model], plan: str, params: dict[str, int]) -> None:
    whole, last = (_compiled(of_batch(rows), plan, params) for rows in (8, 4))
    assert last.program.flats == whole.program.flats
    assert last.program.params == whole.program.params
    assert [r.submesh for r in last.program.roles] == [r.submesh for r in whole.program.roles]
    evaluation = compile_evaluation(whole, of_batch(4), ["logits"]).program
    assert (evaluation.flats, evaluation.params) == (whole.program.flats, whole.program.params)
    assert evaluation.graph.values["labels"].shape[0] == 4


def test_an_evaluation_is_split_where_its_batch_divides(of_batch: Callable[[int], Model]) -> None:
    training = _compiled(of_batch(8), "data_parallel", {})
    for rows, part in ((6, 3), (5, 5)):
        (prologue,) = compile_evaluation(training, of_batch(rows)).program.prologues
        assert {v.shape[0].known for v in prologue.given if v.name.value in ("input_ids", "labels")} == {part}


def test_a_smaller_batch_trains_right(of_batch: Callable[[int], Model]) -> None:
    model = of_batch(6)
    finished = run_in_process(program_of(_compiled(model, "data_parallel", {}).program, model), SGD)
    assert difference(verify_dumps(model, SGD, finished.losses, finished.dumps)) is None


def test_a_batch_that_does_not_divide(of_batch: Callable[[int], Model]) -> None:
    with pytest.raises(PlanError) as raised:
        _compiled(of_batch(3), "data_parallel", {})
    (found,) = raised.value.diagnostics
    text = render(found)
    assert found.code == "E0203" and "batch = 3" in text and "choose a divisor of 3: D = 3" in text
