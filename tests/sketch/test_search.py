"""The search on real models: what it finds is what enumeration finds, proved, the same again, and all that fits."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cli.commands.search import _searched
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.plan.declarations import open_settings
from ssdsl.plan.model_index import index_model
from ssdsl.prove.prove import require_proof
from ssdsl.record import replace
from ssdsl.show.tables.search import search_views, why
from ssdsl.simulate.profile.profile import Profile
from ssdsl.simulate.profile.profiled import Profiled
from ssdsl.simulate.profile.read_costs import CostsFile
from ssdsl.simulate.simulate import simulate
from ssdsl.sketch.by import By
from ssdsl.sketch.reasons import notes, reason
from ssdsl.sketch.result import PlanChange, SearchResult, Tried
from ssdsl.sketch.search import Search, search_of
from ssdsl.sketch.simulations import Simulations
from ssdsl.sketch.sketch import Sketch, sketch_of
from ssdsl.sketch.texts import read_texts
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of
from tests.simulate.profile.test_profile import profile_of
from tests.simulate.steps import compiled

ERRORS = Path(__file__).parents[1] / "errors"
EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = "gpt:tiny,layers=2"
PARTS = 4, 8  # of a batch: fewer than a search tries by itself


def sketch(plan: str, devices: range, **asked: tuple[int, ...]) -> Sketch:
    source = read_source(EXAMPLES / f"{plan}.ssp")
    return sketch_of(source, EXAMPLES, index_model(graph_of(MODEL)), devices, asked)


def searched(work: Search, tries: int = 100) -> SearchResult:
    *_, found = work.run(tries)
    return work.proved(found, 5)


def work(cluster: Cluster, devices: range, *plans: str, **asked: tuple[int, ...]) -> Search:
    sketches = [sketch(plan, devices, **asked) for plan in plans]
    return Search(graph_of(MODEL), cluster, sketches, sketches[0], devices)


def enumerated(searching: Search) -> float:
    """The fewest device-seconds of all settings."""
    workspace, best = Workspace(searching.graph, searching.cluster), float("inf")
    for one in searching.sketches:
        for values in one.settings(searching.devices):
            try:
                candidate = workspace.candidate(one.source, one.overrides(values), one.folder)
                report = workspace.simulate(candidate, searching.cluster)
            except PlanError:
                continue
            if not report.over_bytes:
                best = min(best, report.step_s * candidate.plan.devices)
    return best


@cache
def answer() -> SearchResult:
    """The answer for one plan on four devices."""
    return searched(work(load_cluster("a100x8"), range(4, 5), "megatron", M=PARTS))


@cache
def of_the_laptop() -> SearchResult:
    """The answer for one plan on four processes, with other orders."""
    *_, found = work(load_cluster("laptop"), range(4, 5), "megatron").results()
    return found


@pytest.mark.parametrize(
    "cluster", ["a100x8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("two_sites", "laptop"))]
)
def test_it_finds_the_best_setting(cluster: str) -> None:
    searching = work(load_cluster(cluster), range(4, 5), "megatron", M=PARTS)
    found = answer() if cluster == "a100x8" else searched(searching)
    assert found.best is not None and found.baseline.sketch.name == "megatron"
    assert found.best.setting.device_s == pytest.approx(enumerated(searching), rel=1e-9)
    assert found.best.setting.devices == 4
    assert len(found.tried) <= 100


@pytest.mark.parametrize("most", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_range_of_devices_seeks_the_best_use_of_each(most: int) -> None:
    devices = range(1, most + 1)
    searching = work(load_cluster("a100x8"), devices, "megatron", M=PARTS)
    found = searched(searching)
    assert found.best is not None
    assert found.best.setting.device_s == pytest.approx(enumerated(searching), rel=0.05)
    assert {t.setting.devices for t in found.ranked} <= {*devices}


@pytest.mark.slow
def test_the_same_again() -> None:
    first, again = (
        searched(work(load_cluster("a100x8"), range(4, 5), "megatron", "zero", M=(1, *PARTS)), 6) for _ in range(2)
    )
    assert len(first.tried) == 6
    assert [t.setting.params for t in first.tried] == [t.setting.params for t in again.tried]
    assert first.best is not None and again.best is not None and first.best.setting.params == again.best.setting.params


def test_families_and_ranks() -> None:
    found = searched(work(load_cluster("a100x8"), range(4, 5), "megatron", "zero", Z=(1, 2, 3)))
    families = [t.family for t in found.best_of_families()]
    assert "data" in families and any("ZeRO" in f for f in families) and any("pipeline" in f for f in families)
    costs = [t.setting.device_s for t in found.ranked]
    assert costs == sorted(costs) and found.ranked[0] is found.best
    assert {t.values["Z"] for t in found.tried if t.sketch.name == "zero"} == {1, 2, 3}


def test_of_equal_plans_the_one_nearest_to_the_defaults_is_first() -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron")
    *_, found = searching.run(1)
    assert found.best is not None
    other = replace(found.best, opened={**found.best.opened, "M": 8})
    for tried in ((found.best, other), (other, found.best)):
        assert [t.opened["M"] for t in replace(found, tried=tried).ranked] == [4, 8]


def test_a_changed_plan_is_a_row_only_if_it_is_better() -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron")
    *_, found = searching.run(1)
    assert found.best is not None
    changed = replace(found.best, changes=(PlanChange.ORDER,))
    assert replace(found, tried=(*found.tried, changed)).ranked == (found.best,)


def test_devices_that_run_nothing_are_taken() -> None:
    text = "param S = 4 in [2, 4]\n\nmesh gpus(pp = S)\n\nassign model to gpus[pp = 0]\n"
    plan = sketch_of(Source("a.ssp", text), None, index_model(graph_of(MODEL)), range(1, 9))
    *_, found = Search(graph_of(MODEL), load_cluster("a100x8"), [plan], plan, range(1, 9)).run()
    assert found.best is not None and found.best.opened == {"S": 2}
    assert found.best.setting.devices == 2 and found.baseline.setting.devices == 4


def test_a_changed_plan_names_the_params_that_the_plain_one_names() -> None:
    source = read_source(EXAMPLES / "pipeline.ssp")
    text = source.text.replace("param S", "param A = 1 in [1]\nparam S", 1)
    plan = sketch_of(Source("a.ssp", text), EXAMPLES, index_model(graph_of(MODEL)), range(4, 5), {"M": (8,)})
    searching = Search(graph_of(MODEL), load_cluster("laptop"), [plan], plan, range(4, 5))
    *_, found = searching.results()
    names = {frozenset(t.setting.params) for t in found.tried if t.setting.report is not None}
    assert any(t.changes for t in found.tried) and len(names) == 1


def test_what_does_not_fit_is_told_apart() -> None:
    cluster = load_cluster("a100x8")
    group = cluster.groups[0]
    small = replace(cluster, groups=(replace(group, device=replace(group.device, memory_bytes=6_000_000)),))
    found = searched(work(small, range(4, 5), "megatron", M=PARTS))
    assert all(t.report.peak_bytes <= 6_000_000 for t in found.ranked)
    assert found.over or found.cannot_fit
    tiny = replace(cluster, groups=(replace(group, device=replace(group.device, memory_bytes=1000)),))
    none = searched(work(tiny, range(4, 5), "megatron", M=PARTS))
    assert none.best is None and none.miss is not None and none.miss.over_bytes > 1000
    assert none.miss.over_bytes < none.baseline.over_bytes


def test_what_is_not_proved_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of the compiler in the best plan: it is named, and the next best is the answer."""
    right = answer()
    assert right.best is not None
    wrong = right.best.setting.params

    def proof(program: object) -> object:
        if dict(program.plan.params) == dict(wrong):  # type: ignore[attr-defined]
            raise PlanError(any_error())
        return require_proof(program)  # type: ignore[arg-type]

    monkeypatch.setattr("ssdsl.workspace.require_proof", proof)
    found = searched(work(load_cluster("a100x8"), range(4, 5), "megatron", M=PARTS))
    assert [t.setting.params for t in found.unproved] == [wrong]
    assert found.best is not None and found.best.setting.params != wrong
    assert found.best.setting.device_s >= right.best.setting.device_s


def any_error():  # type: ignore[no-untyped-def]
    """Any diagnostic will do."""
    from ssdsl.plan.errors.names import UnknownParam

    return UnknownParam(None, "T", 1, ())


def test_time_is_up() -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron")
    *_, found = searching.run(100, 1e-9)
    assert found.baseline.report.step_s > 0 and len(found.tried) <= 1


@pytest.mark.parametrize("end", [2, 20, 40])
def test_what_is_refused_before_time_is_up_is_not_left(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron", M=(1, 3, 5, 7))
    monkeypatch.setattr("ssdsl.sketch.deadline.time", SimpleNamespace(monotonic=count().__next__))
    *_, found = searching.run(100, end)
    assert found.left > 0
    others = found.refused, found.elsewhere, found.cannot_fit, found.left
    assert found.simulated + found.beaten + sum(others) == found.settings


def test_time_is_up_while_plans_are_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    searching = work(load_cluster("laptop"), range(4, 5), "megatron")
    *_, found = searching.run()

    def refined(end: int) -> set[str]:
        """The changed settings."""
        monkeypatch.setattr("ssdsl.sketch.deadline.time", SimpleNamespace(monotonic=count().__next__))
        searching._deadline.until = end
        *_, last = searching.refined(found)
        return {t.setting.words for t in last.tried if t.changes}

    assert refined(0) == set() and refined(1000)  # another order for the second family


@pytest.mark.parametrize(("seconds", "shown"), [(9, 0), (45, 0), (50, 3)])
def test_no_simulation_begins_that_would_end_too_late(
    seconds: int, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proofs of what is shown take no longer than its simulations did; there is time for all but the last one's."""
    calls = clock_of(monkeypatch)
    searching = work(load_cluster("laptop"), range(4, 5), "megatron")
    *_, found = searching.results(100, seconds, shown=shown)
    spent, proved = 10 * len(calls), len(searching._simulations.believed)
    searching.proved(found, shown)
    proofs = 10 * (len(searching._simulations.believed) - proved)
    assert len(calls) == 1 or spent <= seconds  # the baseline is always simulated
    assert len(calls) == 1 or spent + proofs - 10 <= seconds < spent + proofs + 10
    others = found.refused, found.elsewhere, found.cannot_fit, found.left
    assert found.simulated + found.beaten + sum(others) == found.settings


def clock_of(monkeypatch: pytest.MonkeyPatch) -> list[Sketch]:
    """The simulated sketches, each of which takes ten seconds of a made-up clock. Nothing else takes any."""
    calls, simulate_one = list[Sketch](), Simulations.simulated

    def simulated(self: Simulations, one: Sketch, values: dict[str, int]) -> Tried:
        calls.append(one)
        return simulate_one(self, one, values)

    monkeypatch.setattr(Simulations, "simulated", simulated)
    monkeypatch.setattr("ssdsl.sketch.deadline.time", SimpleNamespace(monotonic=lambda: 10 * len(calls)))
    return calls


def test_a_search_that_is_stopped_keeps_what_it_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [number for number, tried in enumerate(of_the_laptop().tried) if tried.changes]
    refined = Search.refined

    def stopped(self: Search, found: SearchResult) -> Iterator[SearchResult]:
        for better in refined(self, found):
            yield better
            if better.tried[-1].changes:
                raise KeyboardInterrupt

    monkeypatch.setattr(Search, "refined", stopped)
    again = _searched(work(load_cluster("laptop"), range(4, 5), "megatron"), 100, None, True)
    assert [n for n, tried in enumerate(again.tried) if tried.changes] == changed[:1]


def test_too_much_is_open(golden: Callable[[Path, str], None]) -> None:
    searching = work(load_cluster("a100x1024"), range(1, 1025), "megatron")
    with pytest.raises(PlanError) as raised:
        next(searching.run())
    (diagnostic,) = raised.value.diagnostics
    golden(ERRORS / f"{diagnostic.code}.err", render(diagnostic))


def test_two_plans_of_one_name_are_told_apart(tmp_path: Path) -> None:
    index, sketches = index_model(graph_of(MODEL)), []
    for folder, param, dim in (("a", "T", "heads"), ("b", "D", "batch")):
        text = f"param {param} = 2\nmesh gpus(x = {param})\nsplit model by {dim} into x\nassign model to gpus\n"
        sketches.append(sketch_of(Source(f"{folder}/p.ssp", text), tmp_path, index, range(2, 3)))
    found = searched(Search(graph_of(MODEL), load_cluster("a100x8"), sketches, sketches[0], range(2, 3)))
    assert found.best is not None and {t.sketch.file for t in found.ranked} == {"a/p.ssp", "b/p.ssp"}
    assert notes(found, found.best).keys() <= {*found.best.values}


def test_what_was_not_looked_at_is_left() -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron")
    *_, first = searching.run(1)
    assert len(first.tried) == 1 and first.left == first.settings - 1 and first.bound_s == 0.0
    refused = work(load_cluster("a100x8"), range(7, 8), "data_parallel")
    *_, none = refused.run()
    assert none.best is None and none.refused == none.settings == 1 and none.left == 0


def shown(searching: Search, found: SearchResult) -> str:
    views = search_views("search", found, searching.graph, searching.cluster, 5)
    return "\n".join(line for view in views for line in view.notes)


@pytest.mark.parametrize("parts", [(), (1, 3, 5, 7)])  # all but the default of the second are refused
def test_every_setting_is_accounted_for(parts: tuple[int, ...]) -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron", M=parts or PARTS)
    found = searched(searching) if parts else answer()
    assert found.beaten > 0
    others = found.refused, found.elsewhere, found.cannot_fit, found.left
    assert found.simulated + found.beaten + sum(others) == found.settings
    assert f"{found.beaten} not simulated, whose bounds are not below the best" in shown(searching, found)


def test_without_a_simulation_there_is_no_best_to_compare_with() -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron")
    said = shown(searching, found := next(searching.run()))
    assert f"no plan fits so far: 0 of {found.settings} settings are simulated" in said
    assert f"{found.settings} left, not simulated" in said
    assert not any(word in said for word in ("best", "simulated steps are up to", "equal"))


def test_where_all_settings_are_refused_it_says_what_would_do() -> None:
    searching = work(load_cluster("a100x8"), range(4, 5), "megatron", M=(3,))
    found = searched(searching)
    assert found.best is None and found.refused == found.settings
    assert "refused by E0203, such as: cannot split `batch` into 3 equal parts; choose a divisor of 8" in shown(
        searching, found
    )
    assert "no plan fits: every setting is refused" in shown(searching, found)


def test_where_a_fixed_number_takes_too_many_devices_it_is_named() -> None:
    searching = work(load_cluster("a100x8"), range(1, 2), "megatron", D=(8,))
    found = searched(searching)
    assert "no plan fits: no setting of megatron takes 1 device with D=8" in shown(searching, found)
    searching = work(load_cluster("a100x8"), range(7, 8), "megatron", D=(2,))
    near = "no setting of megatron takes 7 devices; the nearest is 8 with T=2 S=2 M=4"
    assert near in shown(searching, searched(searching))


def test_what_is_open() -> None:
    index = index_model(graph_of(MODEL))
    text = (
        "param T = 2 in [1, 2, 4]\nparam S = 1 in [T, 2 * T]\nparam M = 4\nparam K = 3\nrequire K < 9\n"
        "mesh gpus(pp = S, tp = T)\nsplit model by batch into m = M\nassign model to gpus\n"
    ).replace("S = 1", "S = 2")
    found = sketch_of(Source("x.ssp", text), None, index, range(1, 9))
    assert [p.name for p in found.open] == ["T", "S", "M"] and dict(found.fixed) == {"K": 3}
    assert next(p for p in found.open if p.name == "M").tried == (4, 1, 2, 8)
    pairs = {(v["T"], v["S"]) for v in found.settings(range(1, 9))}
    assert pairs == {(1, 1), (1, 2), (2, 2), (2, 4)}  # four times four are too many
    three = sketch_of(Source("x.ssp", text), None, index, range(6, 7), {"T": (3, 1), "S": (2,)})
    assert {v["T"] for v in three.settings(range(6, 7))} == {3} and three.overrides({"T": 3})["S"] == 2


def test_a_found_plans_params_stand_in_the_order_of_its_text() -> None:
    names = ["D", "T", "S", "M", "A", "B", "C", "E"]
    text = "".join(f"param {name} = 1\n" for name in names) + "assign model to gpus\n"
    plan = sketch_of(Source("a.ssp", f"mesh gpus(x = 2)\n{text}"), None, index_model(graph_of(MODEL)), range(2, 3))
    assert list(plan.answered(plan.source.text, dict.fromkeys(names, 1)).overrides({})) == names


def test_a_list_follows_what_the_user_has_set() -> None:
    """With S = 1 the default of M is not in its list any more: the list says what is tried."""
    text = (
        "param S = 2 in [1, 2, 4]\nparam M = 8 in [S, 2 * S, 4 * S]\nparam K = 2 in [S]\nmesh gpus(pp = S, dp = K)\n"
        "split model by batch into m = M, dp\nlet stage = balance(model, S)\n"
        "assign stage[s] to gpus[pp = s] for s in 0..S\n"
    )
    index, devices = index_model(graph_of(MODEL)), range(1, 9)
    found = sketch_of(Source("x.ssp", text), None, index, devices, {"S": (1,)})
    assert list(found.settings(devices)) == [{"M": 1, "K": 1}, {"M": 2, "K": 1}, {"M": 4, "K": 1}]
    several = sketch_of(Source("x.ssp", text), None, index, devices, {"S": (1, 2)})
    assert {(v["S"], v["M"], v["K"]) for v in several.settings(devices)} == {
        *((1, m, 1) for m in (1, 2, 4)),
        *((2, m, 2) for m in (2, 4, 8)),
    }
    assert len(list(open_settings(parse(Source("x.ssp", text))))) == 9  # as `ssdsl sweep` does


def test_a_setting_whose_list_has_no_numbers_is_refused() -> None:
    text = "param E = 1 in [0, 1]\nparam D = 2 in [2, 4 // E]\nmesh gpus(dp = D)\nsplit model by batch into dp\n"
    text += "assign model to gpus\n"
    plan = sketch_of(Source("x.ssp", text), None, index_model(graph_of(MODEL)), range(2, 5))
    found = searched(Search(graph_of(MODEL), load_cluster("laptop"), [plan], plan, range(2, 5)))
    assert [(why.code, count) for why, count in found.reasons] == [("E0212", 1)]
    assert found.best is not None and found.best.values["E"] == 1


def test_a_default_that_is_not_listed_is_refused() -> None:
    text = "param S = 2 in [2, 3]\nparam M = 6 in [S, 2 * S]\n\nmesh gpus(pp = S)\n"
    with pytest.raises(PlanError) as raised:  # with S = 3 it is listed
        sketch_of(Source("a.ssp", text), None, index_model(graph_of(MODEL)), range(2, 4))
    assert raised.value.diagnostics[0].code == "E0282"
    assert sketch_of(Source("a.ssp", text), None, index_model(graph_of(MODEL)), range(2, 4), {"S": (3,)})


def test_a_width_of_which_one_number_is_left_is_set() -> None:
    found = searched(work(load_cluster("a100x8"), range(1, 2), "co_shard"))
    assert found.best is not None and found.best.values["D"] == 1  # 2 by default
    assert notes(found, found.best)["D"] == "D = 1: no other number takes 1 device"


def test_a_number_without_effect_stays_at_its_default() -> None:
    text = "param D = 2 in [1, 2]\nparam X = 3 in [1, 3]\nmesh gpus(dp = D)\nsplit model by batch into dp\n"
    text += "assign model to gpus\n"
    graph = graph_of("gpt:tiny")
    found = sketch_of(Source("x.ssp", text), None, index_model(graph), range(1, 3))
    known = searched(Search(graph, load_cluster("laptop"), [found], found, range(1, 3)))
    assert known.best is not None and known.best.opened == {"D": 1, "X": 3}
    said = notes(known, known.best)
    assert said["D"].startswith("D = 1: the best simulated with D = 2 is ")
    assert said["X"] == "X = 3: with X = 1 it is the same"
    apart = tuple(t for t in known.tried if t.opened in ({"D": 1, "X": 3}, {"D": 2, "X": 1}))
    other = notes(replace(known, tried=apart), known.best)["X"]
    assert other.startswith("X = 3: the best simulated with X = 1 (D = 2) is ")  # D = 2 may be what makes it slower
    faster = replace(known.best.report, step_s=known.best.report.step_s / 2)
    ordered = replace(known.best, changes=(PlanChange.ORDER,), setting=replace(known.best.setting, report=faster))
    said = notes(replace(known, tried=(*known.tried, ordered)), ordered)
    assert said["X"] == "X = 3: in the plan's own order, with X = 1 it is the same"  # which no order was found for


def test_a_baseline_that_is_better_has_no_reason_to_be_slower() -> None:
    searching = work(load_cluster("laptop"), range(2, 3), "pipeline", "data_parallel", M=(8,))
    searching = replace(searching, sketches=searching.sketches[:1], baseline=searching.sketches[1])
    *_, found = searching.run(1)
    assert found.best is not None and reason(found.baseline.report, found.best.report)
    assert re.fullmatch(r"-\d+\.\d%", why(found.baseline, found))


def test_what_stands_in_a_width_is_open() -> None:
    """Also by way of a `let`; which settings take the asked number of devices is known when a plan has been read."""
    index = index_model(graph_of(MODEL))
    text = (
        "param N = 4\nparam G = 2\nparam K = 3\nlet wide = [G, 2]\nmesh gpus(dp = N // wide[0], tp = wide[0])\n"
        "split model by batch into dp\nsplit model by heads into tp\nassign model to gpus\n"
    )
    found = sketch_of(Source("x.ssp", text), None, index, range(8, 9))
    tried = {p.name: (p.tried, p.why) for p in found.open}
    assert tried == {"N": ((4, 1, 2, 8), "the width of dp"), "G": ((2, 1, 4, 8), "the width of dp")}
    known = searched(Search(graph_of(MODEL), load_cluster("a100x8"), [found], found, range(8, 9)))
    assert {t.values["N"] for t in known.ranked} == {8} and known.elsewhere > 0


NAMED_PARTS = """\
param P = 0 in [0, 1] "the first device of the samples that are named"
param W = 0 in [0, 1] "the samples that are named"
mesh gpus(pp = 2)
split model by batch into way = [6, 2]
let stage = balance(model, 2)
for s in 0..2:
    assign stage[s][way = W] to gpus[pp = P if s == 0 else 1 - P]
    assign stage[s][way = 1 - W] to gpus[pp = s]
"""


def test_a_param_names_a_part_and_its_place() -> None:
    """In opposite directions both devices begin at once."""
    graph = graph_of(MODEL)
    found = sketch_of(Source("x.ssp", NAMED_PARTS), None, index_model(graph), range(2, 3))
    searching = Search(graph, load_cluster("a100x8"), [found], found, range(2, 3))
    known = searched(searching)
    assert known.best is not None and known.best.values["P"] == 1 and not known.reasons
    assert known.best.report.step_s * 2 == pytest.approx(enumerated(searching))


@pytest.mark.slow
def test_which_way_projections_are_cut() -> None:
    """As autoparallel decides for LLaMA3-70B: q, k, v, gate and up by their outputs, o and down by their inputs, norms
    whole."""
    graph, cluster = graph_of("llama:70b,layers=2,batch=32,dtype=bf16", meta=True), load_cluster("h100x1024")
    path = Path(__file__).parent / "projections.ssp"
    sketch = sketch_of(read_source(path), path.parent, index_model(graph), range(64, 65))
    found = searched(Search(graph, cluster, [sketch], sketch, range(64, 65)))
    assert found.best is not None and found.best.values == {"Q": 1, "O": 2, "G": 1, "N": 2}


def test_measured_times_decide(recorded: Profile) -> None:
    """Plans whose operators a profile has are ranked by it, the others refused with what records them."""
    found_file = CostsFile("p.json", profile=recorded)
    searching = replace(work(load_cluster("laptop"), range(2, 3), "data_parallel", "pipeline"), costs=found_file)
    found = searched(searching)
    assert found.best is not None and {t.sketch.name for t in found.ranked} == {"data_parallel", "pipeline"}
    for tried in found.ranked:
        program = Workspace(graph_of(MODEL)).candidate(tried.sketch.source, tried.values, EXAMPLES).lowered.program
        measured = simulate(program, tried.sketch.source, searching.cluster, Profiled(ProgramIndex(program), recorded))
        assert tried.report.step_s == measured.step_s
    (lacks,) = {why.code: why for why, _ in found.reasons}.keys() - {"E0203"}
    assert lacks == "E0652"


@pytest.fixture
def recorded() -> Profile:
    """Times of what two replicas, and two micro-batches of a pipeline, do."""
    return profile_of(compiled("pipeline", MODEL, S=2, M=2))


def test_by_cost_the_cheapest_step_is_the_best_one() -> None:
    """The second half of the devices is slower and nearly free: by device-seconds the first half is the best, by cost
    all are."""
    cluster = load_cluster("two_sites")
    fast, slow = cluster.groups
    levels = tuple(replace(level, link=replace(level.link, bandwidth=1e12, latency=0.0)) for level in cluster.levels)
    assert cluster.price is not None
    free = replace(cluster.price, gb_between_sites=0.0)
    cheap = replace(cluster, groups=(fast, replace(slow, device_hour=0.001)), levels=levels, price=free)
    text = "param D = 32 in [32, 64]\nmesh gpus(d = D)\nsplit model by batch into d\nassign model to gpus\n"
    graph = graph_of("gpt:350m,layers=2,batch=128", True)

    def best(by: By) -> Tried:
        sketch = sketch_of(Source("plan.ssp", text), None, index_model(graph), range(1, 65), {})
        *_, found = Search(graph, cheap, [sketch], sketch, range(1, 65), by=by).results()
        assert found.best is not None and found.best.cost == min(t.cost for t in found.tried if t.fits)
        return found.best

    assert best(By.DEVICES).opened == {"D": 32}
    assert (found := best(By.COST)).opened == {"D": 64}
    assert found.setting.value == pytest.approx(cheap.second_price(64) * found.report.step_s)


def test_a_search_by_cost_needs_prices() -> None:
    graph = graph_of("gpt:tiny", True)
    with pytest.raises(PlanError, match="E0618"):
        search_of(graph, load_cluster("laptop"), read_texts(["data_parallel"], None), range(1, 3), {}, by=By.COST)
