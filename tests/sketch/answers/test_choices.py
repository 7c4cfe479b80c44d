"""A branch for each layer: exact in what whole plans show, and as good as an enumeration of all plans."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.parse import parse
from ssdsl.plan.model_index import index_model
from ssdsl.sketch.answers.choices import Effect, LayerTurns, OpenChoices, with_branches
from ssdsl.sketch.result import PlanChange
from ssdsl.sketch.search import Search
from ssdsl.sketch.simulations import Simulations
from ssdsl.sketch.sketch import sketch_of
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

GPT = "gpt:350m,layers=4,batch=128"
LAYERS = """for layer in each("h.*"):
    either:
        prefetch layer by 2
    or:
        recompute layer
"""
PLAN = f"""mesh gpus(dp = 4)
split model by batch into dp
assign model to gpus
{LAYERS}"""
STAGES = f"""use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 4
{LAYERS}    or:
        recompute layer.addmm
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 4)
"""


@pytest.mark.parametrize("seed", range(40))
def test_the_branches_are_the_best_of_all(seed: int) -> None:
    """Of two choices, kinds of layers, and two devices."""
    draw = Random(seed)
    kinds = tuple(draw.randrange(2) for _ in range(4))
    devices = tuple(frozenset([draw.choice("ab")]) for _ in range(4))
    turns = {name: LayerTurns(0, tuple(range(draw.choice([2, 3]))), kinds, devices) for name in ("x", "y")}
    effects = {
        (device, (name, kind), branch): Effect(draw.randint(-9, 9), draw.randint(-9, 9))
        for device, kind, (name, those) in product("ab", range(2), turns.items())
        for branch in those.numbers[1:]
    }
    room = draw.randint(-12, 3)
    reports = [SimpleNamespace(name=name, capacity_bytes=100 + room, peak_bytes=100) for name in "ab"]
    found = OpenChoices(turns, {"x": 0, "y": 0}, SimpleNamespace(devices=reports), effects)  # type: ignore[arg-type]

    def costs(device: str, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[float, float]:
        seconds = size = 0.0
        for name, taken in (("x", x), ("y", y)):
            for turn, branch in enumerate(taken):
                if device in devices[turn] and branch:
                    effect = effects[device, (name, kinds[turn]), branch]
                    seconds, size = seconds + effect.seconds, size + effect.size_bytes
        return seconds, size

    chosen = found.best(1.0, {}) or {"x": (0,) * 4, "y": (0,) * 4}
    ways = [*product(*(product(turns[name].numbers, repeat=4) for name in ("x", "y")))]
    for device in "ab":
        seconds, size = costs(device, chosen["x"], chosen["y"])
        fitting = [cost for cost in (costs(device, x, y) for x, y in ways) if cost[1] <= room]
        if fitting:
            assert size <= room and seconds == min(fitting)[0]
        else:
            assert size == min(costs(device, x, y)[1] for x, y in ways)


def settings(plan: str, memory: float) -> tuple[Search, Simulations]:
    graph, cluster = graph_of(GPT, True), load_cluster("a100x4")
    sketch = sketch_of(Source("plan.ssp", plan), None, index_model(graph), range(4, 5), {})
    search = Search(graph, cluster, [sketch], sketch, range(4, 5), memory=memory)
    return search, Simulations(graph, cluster, memory=memory)


@pytest.mark.parametrize(
    ("plan", "memory"),
    [(PLAN, 0.6), pytest.param(STAGES, 0.3, marks=pytest.mark.slow)],
)
def test_a_search_finds_the_best_of_all_plans(plan: str, memory: float) -> None:
    """It simulates each branch everywhere, and then a few plans; there are 16, or 81."""
    search, simulations = settings(plan, memory)
    *_, last = search.results()
    (sketch,) = search.sketches
    (choice,) = sketch.script.choices.values()

    def steps() -> Iterator[float]:
        for branches in product(range(len(choice.branches)), repeat=4):
            tried = simulations.simulated(sketch, {f"{choice.name}@{n}": b for n, b in enumerate(branches)})
            if tried.fits:
                yield tried.report.step_s

    assert last.best is not None and PlanChange.CHOICES in last.best.changes
    assert last.best.report.step_s <= min(steps()) * (1 + 1e-9)
    proved = search.proved(last, 1).best
    assert proved is not None and proved.unproved is None
    assert "either" not in proved.sketch.source.text and "# not taken (" in proved.sketch.source.text


def test_the_text_has_a_loop_for_each_run_of_turns() -> None:
    model = index_model(graph_of(GPT, True))
    text = with_branches(parse(Source("plan.ssp", PLAN)), {"either:5": (0, 1, 1, 0)}, model)
    assert text.partition("gpus\n")[2] == (
        'for layer in each("h.0"):\n    prefetch layer by 2\n    # not taken: recompute layer\n'
        'for layer in each("h.{1-2}"):\n    recompute layer\n    # not taken: prefetch layer by 2\n'
        'for layer in each("h.3"):\n    prefetch layer by 2\n    # not taken: recompute layer\n'
    )
    parse(Source("plan.ssp", text))


def test_values_without_numbers_are_listed_one_by_one() -> None:
    plan = (
        "let those = [model, model.addmm]\nfor x in those:\n    either:\n        recompute x\n        prefetch x by 1\n"
        "    or:\n        prefetch x by 2  # two\n"
    )
    text = with_branches(parse(Source("plan.ssp", plan)), {"either:3": (1, 0)}, index_model(graph_of(GPT, True)))
    assert text == (
        "let those = [model, model.addmm]\n"
        "for x in [those[0]]:\n    prefetch x by 2  # two\n    # not taken: recompute x\n    #     prefetch x by 1\n"
        "for x in [those[1]]:\n    recompute x\n    prefetch x by 1\n    # not taken: prefetch x by 2  # two\n"
    )


def test_a_choice_outside_of_loops_is_a_number_like_others() -> None:
    plan = PLAN.replace(LAYERS, "either:\n    prefetch model by 2\nor:\n    recompute model\n")
    search, _ = settings(plan, 0.6)
    (choice,) = search.sketches[0].open
    assert choice.name == "either:4" and choice.tried == (0, 1)
    *_, last = search.results()
    assert last.best is not None and last.best.opened == {"either:4": 1} and not last.best.changes


SITES = """about = "two sites"
[devices.d]
name = "d"
peak_tflops = { float32 = 10 }
memory_gib = 16
memory_bandwidth_gb_s = 500
compute_efficiency = 0.5
memory_efficiency = 0.5
launch_us = 5
source = "test"
[[nodes]]
device = "d"
count = 2
devices = 2
[[nodes.levels]]
name = "node"
bandwidth_gb_s = 10
latency_us = 1
source = "test"
[[nodes.levels]]
name = "internet"
bandwidth_gb_s = 0.001
latency_us = 1000
source = "test"
"""
RATES = """use pipeline: one_f_one_b
mesh gpus(pp = 4)
split model by batch into m = 4
let stage = balance(model, 4)
assign stage[s] to gpus[pp = s] for s in 0..4
for s in 0..3:
    param percent = 100 in [100, 10, 1]  # kept
    if percent < 100:
        compress stage[s] by topk(0.01 * percent) along hidden
one_f_one_b(stage, 4)
"""


def test_slow_links_alone_are_compressed(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(SITES)
    graph, cluster = captured("gpt:tiny,hidden=256")[1], load_cluster(str(tmp_path / "sites.toml"))
    sketch = sketch_of(Source("plan.ssp", RATES), None, index_model(graph), range(4, 5), {})
    *_, last = Search(graph, cluster, [sketch], sketch, range(4, 5)).results()
    assert last.best is not None
    assert "let percent = [100, 1, 100][s]  # of [100, 10, 1]" in last.best.sketch.source.text
    steps = {t.opened["percent"]: t.report.step_s for t in last.tried if not t.changes}
    assert last.best.report.step_s <= 1.005 * min(steps.values()) < 0.5 * steps[100]
