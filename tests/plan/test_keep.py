"""`keep OPS.weights through m` and `assign OPS to host` are facts about state; their words are names elsewhere."""

from pathlib import Path

import pytest

from ssdsl.compile import compile_source
from ssdsl.ir.param import Kept
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import captured

GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
PLAN = """mesh gpus(node = 2, dp = 2)
split model by batch into node, dp, m = 2
split model.weights by row into node, dp
{}
assign model to gpus
"""


def compiled(more: str, plan: str = PLAN) -> Compiled:
    return compile_source(Source("plan.ssp", plan.format(more)), captured(GPT)[1], {}, Path())


def kept(more: str) -> set[Kept | None]:
    return {flat.kept for flat in compiled(more).program.flats}


def test_what_is_said_is_what_is_kept() -> None:
    assert kept("") == {None}
    assert kept("keep model.weights through m") == {Kept((), "m")}
    assert kept("keep model.weights through step in backward") == {Kept((), None, in_backward=True)}
    assert kept("keep model.weights by row into dp through step") == {Kept(("dp",))}
    assert kept('keep model["h.0"].weights through m') == {None, Kept((), "m")}


def test_the_parts_that_weights_have_anyway_are_no_news() -> None:
    found = compiled("keep model.weights by row into dp, node through step")
    assert {flat.kept for flat in found.program.flats} == {None}
    assert [warning.code for warning in found.warnings] == ["E0271"]


def test_what_stays_whole_does_so_on_a_mesh_inside_another() -> None:
    plan = PLAN.replace("{}\n", "mesh own(k = 2) on gpus[node = 0]\n{}\n").replace("node, dp", "dp")
    plan = plan.replace("assign model to gpus", "assign model to gpus[node = 0]")
    assert {flat.kept for flat in compiled("keep model.weights through m", plan).program.flats} == {Kept((), "m")}


@pytest.mark.parametrize(
    "more",
    [
        "let keep = model\nkeep keep.weights through m",
        'for host in each("h.*"):\n    assign host.optimizer to host',
        "let through = model\nkeep through.weights through m",
        "def keep(ops):\n    recompute ops\nkeep(model)",
    ],
)
def test_the_words_may_be_names(more: str) -> None:
    assert compiled(more)


def test_a_statement_is_written_in_one_way() -> None:
    text = "keep   model . weights by row into a,b through step in backward\n"
    assert (
        format_script(parse(Source("a.ssp", text))) == "keep model.weights by row into a, b through step in backward\n"
    )
