"""Orders that are found for plans that have none: those of papers come out, proved, and written as one call."""

from pathlib import Path

import pytest

from ssdsl.analyse.state import MIXED
from ssdsl.cluster.load import load_cluster
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import read_plan
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.answers import clocks
from ssdsl.sketch.answers.clocks import Modulo, with_clock
from ssdsl.sketch.answers.write import written
from ssdsl.sketch.bounds.task_bounds import unordered
from ssdsl.sketch.result import PlanChange
from ssdsl.sketch.search import Search
from ssdsl.sketch.sketch import Sketch, sketch_of
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import captured

EXAMPLES = Path(__file__).parents[3] / "examples"
CLUSTER = "a100x8"
GPT, T5, ALPHAFOLD = "gpt:tiny", "t5:3.9b,layers=4,batch=8", "alphafold2:tiny"
VEE = "gpt:350m,layers=8,batch=16,vocab=64"


def graph_of(model: str) -> Graph:
    """Without numbers, except for the small model that other tests capture, too."""
    return (captured(model) if model == GPT else captured(model, meta=True))[1]


def sketch_of_text(text: str, model: str = GPT, devices: int = 2, **asked: int) -> Sketch:
    source = Source("open.ssp", text)
    numbers = {name: (value,) for name, value in asked.items()}
    return sketch_of(source, EXAMPLES, index_model(graph_of(model)), range(devices, devices + 1), numbers)


def sketch(plan: str, model: str, devices: int, **asked: int) -> Sketch:
    source = read_source(EXAMPLES / f"{plan}.ssp")
    numbers = {name: (value,) for name, value in asked.items()}
    folder = (EXAMPLES / f"{plan}.ssp").parent
    return sketch_of(source, folder, index_model(graph_of(model)), range(devices, devices + 1), numbers)


def step_s(plan: str, model: str, **settings: int) -> float:
    path = EXAMPLES / f"{plan}.ssp"
    workspace = Workspace(graph_of(model), load_cluster(CLUSTER))
    candidate = workspace.candidate(read_source(path), settings, path.parent)
    return workspace.simulate(candidate, load_cluster(CLUSTER)).step_s


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("model", "open_", "asked", "by_hand", "settings"),
    [
        (T5, "sketch_embeddings", {"E": 4, "M": 8, "R": 0}, "t5_interlaced", {"S": 4, "M": 8}),
        (ALPHAFOLD, "sketch_passes", {"S": 2, "M": 4, "R": 1, "Z": 0}, "alphafold2_3f1b", {"S": 2, "M": 4}),
    ],
    ids=["interlaced", "3f1b"],
)
def test_the_order_of_a_paper_is_found(
    model: str, open_: str, asked: dict[str, int], by_hand: str, settings: dict[str, int]
) -> None:
    graph, devices = graph_of(model), settings["S"]
    plan = sketch(f"papers/{open_}", model, devices, **{"D": 1, "P": 1, "T": 1, "A": 1} | asked)
    assert clocks.is_without_order(plan)
    searching = Search(graph, load_cluster(CLUSTER), [plan], plan, range(devices, devices + 1))
    *_, found = searching.run()
    assert found.simulated == 1 and not found.changed
    *_, found = searching.refined(found)
    found = searching.proved(found, 1)
    assert found.best is not None and found.best.changes == (PlanChange.ORDER,)
    assert found.best.report.step_s <= 1.01 * step_s(f"papers/{by_hand}", model, **settings)
    text = written(found.best.sketch, found.best.setting.params, {})
    assert "use pipeline: modulo\n" in text and text.count("modulo([") == 1


def test_an_order_takes_the_place_of_the_plans_own() -> None:
    plan = sketch("papers/t5_interlaced", T5, 4, S=4, M=8)
    assert clocks.is_open(plan) and not clocks.is_without_order(plan)
    found = with_clock(plan, {}, Modulo(3, (0, 1, 2, 0, 1, 2), (5, 4, 3, 5, 4, 3)))
    assert "use pipeline: modulo\n" in found.source.text and "interlaced(" not in found.source.text
    call = "modulo([stage[s] for s in 0..S] + [embed, head], M, period = 3, forward = [0, 1, 2, 0, 1, 2], backward = ["
    assert call in found.source.text


@pytest.mark.parametrize("plan", ["megatron", "v_shaped", "data_parallel", "zero", "zero_bubble"])
def test_what_has_an_order_of_stages_or_one_part_is_not_open(plan: str) -> None:
    assert not clocks.is_open(sketch(plan, GPT, 2))


V = """mesh gpus(pp = 4)
let stage = balance(model, 8)
split model by batch into m = 16
assign stage[s] to gpus[pp = min(s, 7 - s)] for s in 0..8
"""


def test_two_stages_a_device_in_a_v_are_given_numbers_with_halves_of_backwards() -> None:
    plan, graph, cluster = sketch_of_text(V, VEE, 4), graph_of(VEE), load_cluster(CLUSTER)
    assert clocks.is_without_order(plan)
    searching = Search(graph, cluster, [plan], plan, range(4, 5))
    *_, found = searching.run()
    *_, found = searching.refined(found)
    found = searching.proved(found, 1)
    assert found.best is not None and found.best.changes == (PlanChange.ORDER,)
    text = written(found.best.sketch, found.best.setting.params, {})
    assert "use pipeline: v_schedule\n" in text and "v_schedule([stage[s] for s in 0..8], 16, ahead = [" in text
    workspace = Workspace(graph, cluster)
    by_hand = workspace.candidate(Source("zb_v.ssp", f"use pipeline: zb_v\n{V}zb_v(stage, 16)\n"), {}, None)
    assert found.best.report.step_s <= workspace.simulate(by_hand, cluster).step_s


LAST_BOTH = V.replace("8)\n", "6)\n").replace("min(s, 7 - s)] for s in 0..8", "min(s, 5 - s)] for s in [0, 1, 4, 5]")


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        (V, True),
        (f"{LAST_BOTH}assign stage[2] | stage[3] to gpus[pp = 2]\n", True),
        (V.replace("min(s, 7 - s)", "s").replace("pp = 4", "pp = 8"), False),
        (V.replace("min(s, 7 - s)", "0"), False),
    ],
)
def test_backwards_are_in_halves_only_where_two_parts_are_on_each_device(text: str, may_be: bool) -> None:
    plan = sketch_of_text(text, VEE, 4)
    assert clocks.is_without_order(plan)
    reading = read_plan(plan.script, index_model(graph_of(VEE)), {}, None, orders=False)
    assert clocks.may_be_vee(reading.plan) == may_be


LOOP = """mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by batch into m = 4
for s in 0..2:
    let own = stage[s]
    assign own to gpus[pp = s]
"""
BRANCH = """mesh gpus(pp = 2)
param S = 2
let stage = balance(model, 2)
split model by batch into m = 4
if S == 2:
    assign stage[0] to gpus[pp = 0]
    assign stage[1] to gpus[pp = 1]
"""


@pytest.mark.parametrize("text", [LOOP, BRANCH], ids=["loop", "branch"])
def test_parts_that_the_text_does_not_name_are_not_asked_for(text: str) -> None:
    assert not clocks.is_open(sketch_of_text(text))


def test_a_loop_of_several_statements_names_its_parts() -> None:
    text = LOOP.replace("    let own = stage[s]\n    assign own", "    assign stage[s]")
    found = with_clock(sketch_of_text(text), {}, Modulo(2, (0, 1), (3, 2)))
    assert "modulo([stage[s] for s in 0..2], 4, period = 2, forward = [0, 1], backward = [3, 2])" in found.source.text
    assert format_script(parse(found.source), found.source)


def test_parts_that_wait_for_each_other_keep_the_order_that_they_have() -> None:
    """The first and the last layer in one part: its forward is on both sides of that of the others."""
    text = """mesh gpus(pp = 2)
let ends = model["h.0"] | model["h.3"]
split model by batch into m = 4
assign ends to gpus[pp = 0]
assign model - ends to gpus[pp = 1]
"""
    plan, graph = sketch_of_text(text), graph_of(GPT)
    assert clocks.is_without_order(plan)
    searching = Search(graph, load_cluster(CLUSTER), [plan], plan, range(2, 3))
    *_, found = searching.run()
    assert found.best is not None and found.best.changes == ()


def test_an_order_in_a_file_that_the_plan_uses_is_one(tmp_path: Path) -> None:
    (tmp_path / "mine.ssp").write_text("def later(a, b):\n    order a.fwd[m = 3] -> b.fwd[m = 0]\n")
    text = """use "mine.ssp": later
mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by batch into m = 4
assign stage[s] to gpus[pp = s] for s in 0..2
later(stage[0], stage[1])
"""
    model = index_model(graph_of(GPT))
    plan = sketch_of(Source("open.ssp", text), tmp_path, model, range(2, 3))
    assert clocks.is_without_order(plan) and not clocks.parts_of(plan, {}, model)
    without = sketch_of(
        Source("open.ssp", text.replace("later(stage[0], stage[1])\n", "")), tmp_path, model, range(2, 3)
    )
    assert len(clocks.parts_of(without, {}, model)) == 2


@pytest.mark.parametrize("recompute", (pytest.param(0, marks=pytest.mark.slow), 1))
def test_the_memory_that_an_order_may_use_is_what_the_rest_of_a_step_leaves(recompute: int) -> None:
    """The batch's images and what a backward computes again are most of it here."""
    model = "swin:small,depths=1-1-2-1,batch=16"
    settings = {"T": 1, "S": 2, "M": 8, "A": 1, "B": 1, "D": 1, "R": recompute}
    plan, graph, cluster = sketch("papers/sketch_large_images", model, 2), graph_of(model), load_cluster(CLUSTER)
    workspace = Workspace(graph, cluster)
    reading = read_plan(plan.script, workspace.model, plan.overrides(settings), plan.folder)
    found = unordered(reading.plan, dict.fromkeys(reading.plan.operators, 0), cluster, MIXED)
    report = workspace.simulate(workspace.formed(reading), cluster)
    for role, device in enumerate(report.devices):
        parts = dict(device.peak_parts)
        rest = device.peak_bytes - parts["activations"] - parts["transfers"]
        assert device.capacity_bytes - found.room_bytes(role, 1.0) == rest


def test_the_compilers_own_order_stays_where_a_clock_has_too_little_memory() -> None:
    """What a clock needs is known when it is simulated; until one fits, the next is given less."""
    text = (
        "mesh gpus(pp = 2)\nsplit model by batch into m = 2\nlet stage = balance(model, 4)\n"
        "assign stage[s] to gpus[pp = min(s, 3 - s)] for s in 0..4\n"
    )
    plan, graph, cluster = sketch_of_text(text), graph_of(GPT), load_cluster(CLUSTER)
    workspace = Workspace(graph, cluster)
    own = workspace.simulate(workspace.candidate(plan.source, {}), cluster)
    tight = 1.001 * own.peak_bytes / max(d.capacity_bytes for d in own.devices)
    steps = {}
    for memory in (tight, 1.0):
        *_, found = Search(graph, cluster, [plan], plan, range(2, 3), memory=memory).results()
        assert found.best is not None
        steps[memory] = found.best.report.step_s
    assert steps[1.0] <= steps[tight] <= own.step_s
