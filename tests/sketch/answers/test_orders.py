"""Orders that a search finds for a pipeline: better than the plan's own, proved, and written as two numbers a stage."""

from pathlib import Path

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.answers.orders import call_of, is_open, with_order
from ssdsl.sketch.answers.write import written
from ssdsl.sketch.reasons import notes
from ssdsl.sketch.result import PlanChange
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import Sketch, sketch_of
from ssdsl.solve.order import Schedule
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of

EXAMPLES = Path(__file__).parents[3] / "examples"
MODEL = "gpt:350m,layers=8,batch=32"
SETTING = {"D": (1,), "T": (1,), "S": (4,), "M": (8,)}


def sketch(plan: str = "megatron") -> Sketch:
    source = read_source(EXAMPLES / f"{plan}.ssp")
    return sketch_of(source, EXAMPLES, index_model(graph_of(MODEL, meta=True)), range(4, 5), SETTING)


@pytest.mark.slow
def test_a_better_order_is_found_and_proved() -> None:
    graph, cluster = graph_of(MODEL, meta=True), load_cluster("a100x8")
    work = Search(graph, cluster, [sketch()], sketch(), range(4, 5))
    *_, before = work.run()
    *_, found = work.refined(before)
    found = work.proved(found, 5)
    assert before.best is not None and found.best is not None
    assert PlanChange.ORDER in found.best.changes and found.best.report.step_s < 0.97 * before.best.report.step_s
    text = written(found.best.sketch, found.best.setting.params, notes(found, found.best))
    assert "use pipeline" not in text and "# the plan's own order is" in text
    again = Workspace(graph, cluster)
    candidate = again.candidate(Source("found.ssp", text), {}, None)
    again.proved(candidate)
    assert again.simulate(candidate, cluster).step_s == found.best.report.step_s


def test_what_is_no_schedule_of_one_stage_a_device_stays() -> None:
    assert is_open(sketch()) and not is_open(sketch("data_parallel"))
    assert not is_open(sketch("v_shaped"))


def with_numbers(own: Sketch) -> Sketch:
    plan = interpret_all(own.script, graph_of(MODEL, meta=True), {"D": 1, "T": 1, "S": 4}, EXAMPLES)[0]
    call = call_of(own, plan)
    assert call is not None
    return with_order(own, {"S": 4}, call, Schedule((4, 3, 2, 1), (0, 1, 2, 3), 1.0, 1.0, 4.0, 0))


def test_the_text_has_the_numbers() -> None:
    found = with_numbers(sketch())
    assert "schedule(stage, M, ahead = [4, 3, 2, 1], late = [0, 1, 2, 3])\n" in found.source.text
    assert found.open == () and parse(found.source)


@pytest.mark.parametrize(
    ("imported", "further", "written_use"),
    [
        ("zb_h1, one_f_one_b", "", "use pipeline: zb_h1\n"),
        ("one_f_one_b, schedule", "", "use pipeline: schedule\n"),
        ("one_f_one_b", "if S == 1:\n    one_f_one_b(stage, M)\n", "use pipeline: one_f_one_b\n"),
    ],
)
def test_an_import_that_nothing_needs_goes_and_what_is_still_called_stays(
    imported: str, further: str, written_use: str
) -> None:
    megatron = read_source(EXAMPLES / "megatron.ssp")
    text = megatron.text.replace("use pipeline: one_f_one_b", f"use pipeline: {imported}") + further
    graph = graph_of(MODEL, meta=True)
    own = sketch_of(Source("megatron.ssp", text), EXAMPLES, index_model(graph), range(4, 5), SETTING)
    found = with_numbers(own)
    assert written_use in found.source.text
    interpret_all(parse(found.source), graph, {"D": 1, "T": 1, "S": 4}, EXAMPLES)[0]  # raises nothing


def test_a_call_of_the_languages_own_word_is_open_and_keeps_its_shape() -> None:
    text = read_source(EXAMPLES / "megatron.ssp").text
    text = text.replace("use pipeline: one_f_one_b\n", "").replace("one_f_one_b(stage, M)", "schedule(stage, M)")
    model = index_model(graph_of(MODEL, meta=True))
    own = sketch_of(Source("megatron.ssp", text), EXAMPLES, model, range(4, 5), SETTING)
    assert is_open(own)
    numbers = "schedule(stage, M, ahead = [4, 3, 2, 1], late = [0, 1, 2, 3])"
    assert with_numbers(own).source.text == text.replace("schedule(stage, M)", numbers)
    function = Source("megatron.ssp", f"{text}def schedule(stage, M):\n    order stage[0] -> stage[1]\n")
    assert not is_open(sketch_of(function, EXAMPLES, model, range(4, 5), SETTING))


ONE = "one_f_one_b(stage, M)\n"
ELSEWHERE = {
    "condition": (f"if S == 1:\n    {ONE}\nelif S > 2:\n    {ONE}", "elif S > 2:\n    {}"),
    "function": (f"def run(stage, M):\n    {ONE}\nrun(stage, M)\n", "def run(stage, M):\n    {}"),
}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_call_that_is_carried_out_is_found_in_a_condition_and_in_a_function(place: str) -> None:
    last, where = ELSEWHERE[place]
    text = read_source(EXAMPLES / "megatron.ssp").text.replace(ONE, last)
    graph = graph_of(MODEL, meta=True)
    own = sketch_of(Source("megatron.ssp", text), EXAMPLES, index_model(graph), range(4, 5), SETTING)
    assert where.format("schedule(stage, M, ahead = [4, 3") in with_numbers(own).source.text
    work = Search(graph, load_cluster("a100x8"), [own], own, range(4, 5))
    *_, before = work.run()
    *_, found = work.refined(before)
    found = work.proved(found, 5)
    assert found.best is not None and PlanChange.ORDER in found.best.changes
    text = written(found.best.sketch, found.best.setting.params, notes(found, found.best))
    assert where.format("# the plan's own order is") in text


def test_a_schedule_that_the_setting_does_not_call_stays() -> None:
    text = read_source(EXAMPLES / "megatron.ssp").text.replace(ONE, f"if S == 1:\n    {ONE}")
    graph = graph_of(MODEL, meta=True)
    own = sketch_of(Source("megatron.ssp", text), EXAMPLES, index_model(graph), range(4, 5), SETTING)
    assert call_of(own, interpret_all(own.script, graph, {"D": 1, "T": 1, "S": 4}, EXAMPLES)[0]) is None
