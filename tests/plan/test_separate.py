"""Parts that a plan names become operators: how few, and what reads what."""

from collections.abc import Callable

import pytest

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Graph, Stage
from ssdsl.plan.interpret import read_plan
from ssdsl.plan.model_index import index_model
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import captured

HEAD = "mesh gpus(pp = 2)\nsplit model by batch into m = 4\n"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return captured("gpt:tiny,hidden=32,seq=16,vocab=64")[1]


@pytest.fixture
def read(graph: Graph) -> Callable[[str], Graph]:
    return lambda text: read_plan(parse(Source("plan.ssp", HEAD + text)), index_model(graph)).plan.graph


def _copies(graph: Graph, kind: str) -> list[int]:
    """The rows that the operators of a kind have, in their order, of those in the first layer."""
    return [o.dims[0].size for o in graph.computing if o.kind == kind and o.path.endswith("h.0.ln_1")]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("assign model to gpus", [8]),
        ("assign model to gpus\nrecompute model[m = 1]", [2, 2, 4]),
        ("assign model to gpus\nrecompute model[m = m] for m in 0..2", [4, 4]),
        ("assign model to gpus\nrecompute model[m = m] for m in [0, 3]", [2, 4, 2]),
        ("assign model[m = m] to gpus[pp = m // 2] for m in 0..4", [4, 4]),
        ("assign model[m = m] to gpus[pp = m % 2] for m in 0..4", [2, 2, 2, 2]),
    ],
)
def test_parts_that_are_alike_stay_together(read: Callable[[str], Graph], text: str, rows: list[int]) -> None:
    assert _copies(read(text), "layer_norm") == rows


def test_only_inputs_are_cut_and_nothing_is_joined(read: Callable[[str], Graph], graph: Graph) -> None:
    cut = read("assign model[m = m] to gpus[pp = m // 2] for m in 0..4")
    slices = [o for o in cut.operators if o.name in cut.inserted and o.kind == "slice"]
    assert slices and all(o.stage is not Stage.COMPUTE for o in slices)
    assert not [o for o in cut.computing if o.name in cut.inserted]
    assert len(cut.losses) == 2


def test_a_plan_without_named_parts_keeps_the_graph(read: Callable[[str], Graph], graph: Graph) -> None:
    assert read("assign model to gpus") is graph


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("assign model[m = 4] to gpus[pp = 0]", "E0299"),
        ("assign model[n = 0] to gpus[pp = 0]", "E0242"),
        ("assign model[m = 0] to gpus[pp = 0]", "E0252"),
        ("assign model[m = 0] to gpus[pp = 0]\nassign model to gpus[pp = 1]", "E0253"),
        ("split model by seq into q = 2\nassign model[q = 0] to gpus", "E0297"),
    ],
)
def test_mistakes(read: Callable[[str], Graph], text: str, code: str) -> None:
    with pytest.raises(PlanError) as raised:
        read(text)
    assert {d.code for d in raised.value.diagnostics} == {code}


def test_names_say_which_part(graph: Graph) -> None:
    script = parse(Source("plan.ssp", HEAD + "assign model[m = m] to gpus[pp = 0 if m == 0 else 1] for m in 0..4"))
    plan = read_plan(script, index_model(graph)).plan
    copies = [o for o in plan.graph.computing if o.path.endswith("h.0.ln_1")]
    assert [o.name for o in copies] == ["layer_norm_m0", "layer_norm_m1_to_3"]
    named = [plan.of(o.name).module(o) for o in copies]
    assert named == ["transformer.h.0.ln_1[m = 0]", "transformer.h.0.ln_1[m = 1 to 3]"]
    assert {"labels_m0", "labels_m1_to_3"} <= plan.graph.values.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("assign model[m = 0] to gpus[pp = 0]", '`assign model["transformer.wte"][m = m] to gpus for m in 1..4`'),
        ("assign model[m = m] to gpus for m in 0..3", '`assign model["transformer.wte"][m = 3] to gpus`'),
        ("assign model[m = 0] to gpus[pp = 0]\nassign model to gpus[pp = 1]", "`transformer.wte[m = 0]` is already"),
    ],
)
def test_mistakes_name_parts(read: Callable[[str], Graph], text: str, said: str) -> None:
    with pytest.raises(PlanError) as raised:
        read(text)
    assert said in render(raised.value.diagnostics[0])
