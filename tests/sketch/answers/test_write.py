"""A found plan is the sketch's text with other defaults: its comments stay, and it says the same."""

from pathlib import Path

import pytest

from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.plan.declarations import params
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.answers.cuts import with_cuts
from ssdsl.sketch.answers.orders import with_order
from ssdsl.sketch.answers.schedules import called
from ssdsl.sketch.answers.write import copies_for, save_plan, written
from ssdsl.sketch.sketch import Sketch, sketch_of
from ssdsl.solve.order import Schedule
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import graph_of

EXAMPLES = Path(__file__).parents[3] / "examples"


def sketch(source: Source, folder: Path | None, **asked: tuple[int, ...]) -> Sketch:
    return sketch_of(source, folder, index_model(graph_of("gpt:tiny")), range(8, 9), asked)


def test_only_defaults_and_notes_are_new() -> None:
    source = read_source(EXAMPLES / "megatron.ssp")
    text = written(sketch(source, EXAMPLES), {"D": 1, "T": 4, "M": 8}, {"T": "T = 4: because"})
    found = {p.name: p.default for p in params(parse(Source("x.ssp", text)))}
    assert found == {"D": 1, "T": 4, "S": 2, "M": 8, "R": 0}
    new = [line for line in text.splitlines() if line not in source.text.splitlines()]
    assert new == ["# T = 4: because", 'param T = 4 "tensor-parallel width"', 'param M = 8 "micro-batches"']
    assert text.replace("# T = 4: because\n", "").count("\n") == source.text.count("\n")


def test_a_note_of_an_earlier_search_is_replaced() -> None:
    begun = "# T = 2: for now\nparam T = 2\n"
    text = f"{begun}mesh gpus(tp = T)\nassign model to gpus\n"
    first = "T = 4: the best simulated with T = 2 is 3.0% slower"
    once = written(sketch(Source("x.ssp", text), None), {"T": 4}, {"T": first})
    again = written(sketch(Source("x.ssp", once), None), {"T": 8}, {"T": "T = 8: no other number takes 8 devices"})
    assert first in once and first not in again
    assert again.startswith("# T = 2: for now\n# T = 8: no other number takes 8 devices\nparam T = 8\n")


def test_a_number_that_is_not_listed_is_added() -> None:
    text = 'param T = 2 in [1, 2] "width"\n\nmesh gpus(tp = T)\n\nassign model to gpus\n'
    found = written(sketch(Source("x.ssp", text), None, T=(2, 4)), {"T": 4}, {})
    assert 'param T = 4 in [1, 2, 4] "width"' in found


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("1..3", "(1..3) + [8]"),
        ("[1, 2] + [2]", "[1, 2] + [2] + [8]"),
        ("[S, 2 * S]", "[S, 2 * S]"),
        ("[2]", "[2, 8]"),
    ],
)
def test_the_number_is_among_those_that_are_tried(listed: str, said: str) -> None:
    text = f"param S = 2\nparam T = 2 in {listed}\n\nmesh gpus(pp = S, tp = T)\n\nassign model to gpus\n"
    found = written(sketch(Source("x.ssp", text), None, S=(4,), T=(8,)), {"S": 4, "T": 8}, {})
    assert f"param T = 8 in {said}\n" in found
    assert 8 in params(parse(Source("x.ssp", found)))[1].domain


def test_files_beside_the_sketch_go_with_the_plan(tmp_path: Path) -> None:
    (tmp_path / "plans/parts").mkdir(parents=True)
    (tmp_path / "found").mkdir()
    (tmp_path / "plans/mine.ssp").write_text('use "parts/put.ssp": put\n')
    (tmp_path / "plans/parts/put.ssp").write_text("def put(ops, mesh_):\n    assign ops to mesh_\n")
    text = 'use "mine.ssp": put\n\nparam T = 2\n\nmesh gpus(tp = T)\n\nput(model, gpus)\n'
    own = sketch(Source("x.ssp", text), tmp_path / "plans")
    save_plan(own, written(own, {"T": 1}, {}), str(tmp_path / "found/x.ssp"))
    plan = read_source(tmp_path / "found/x.ssp")
    assert interpret_all(parse(plan), graph_of("gpt:tiny"), {}, tmp_path / "found")[0].params == {"T": 1}
    save_plan(own, plan.text, str(tmp_path / "found/x.ssp"))  # the same files are there already
    (tmp_path / "found/parts/put.ssp").write_text("let put = 1\n")
    with pytest.raises(PlanError) as error:
        copies_for(own, tmp_path / "found")
    assert "is another file than" in str(error.value)


def test_a_file_that_is_missing_is_an_error_of_the_plan_alone(tmp_path: Path) -> None:
    text = 'use "missing.ssp": put\n\nparam T = 2\n\nmesh gpus(tp = T)\n\nput(model, gpus)\n'
    assert copies_for(sketch(Source("x.ssp", text), tmp_path), tmp_path / "found") == {}


ROW = """\
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = cut(
    model,  # all of it
    2,
)
assign stage[s] to gpus[pp = s] for s in 0..2
"""


def test_an_answer_stands_before_the_last_comma() -> None:
    found = with_cuts(sketch(Source("x.ssp", f"{ROW}schedule(stage, 4,)  # 1F1B\n"), None), {}, ("h.1",))
    own = next(call for name, call in called(found.script) if name == "schedule")
    found = with_order(found, {}, ("schedule", own), Schedule((3, 1), (0, 1), 1.0, 1.0, 2.0, 0))
    text = written(found, {}, {})
    assert 'let stage = cut(model, 2, before = ["h.1"])\n' in text
    assert "schedule(stage, 4, ahead = [3, 1], late = [0, 1])  # 1F1B\n" in text
    interpret_all(parse(Source("x.ssp", text)), graph_of("gpt:tiny"))[0]


def test_a_note_stands_above_the_call_that_it_is_of() -> None:
    text = f"{ROW}if 1 == 2:\n    schedule(stage, 4)\nelse:\n    schedule(stage, 4, ahead = [2, 1], late = [0, 0])\n"
    found = written(sketch(Source("x.ssp", text), None), {}, {"schedule": "because"})
    assert found.count("# because") == 1 and "    # because\n    schedule(stage, 4, ahead" in found
