"""One workspace for many plans gives what a new one gives for each, also where a text changes by a comment or order."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_source
from ssdsl.ir.comm import Signal
from ssdsl.lang.read import read_source
from ssdsl.show.advice.by_line import by_line_view
from ssdsl.show.tables.program import shown_program
from ssdsl.show.tables.report import report_json
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of

EXAMPLES = Path(__file__).parents[1] / "examples"
PLANS = ("megatron", "zero_bubble", "pipeline", "interleaved", "sequence_parallel", "zero")
PARAMS: dict[str, tuple[int, ...]] = {"T": (1, 2), "S": (1, 2, 3), "M": (2, 4), "D": (1, 2)}
Settings = dict[str, int]


def edits(rng: random.Random, text: str) -> Iterator[str]:
    """The text as it is, and as somebody changes it."""
    yield text
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    starts = [n for n, line in enumerate(lines) if line and not line.startswith((" ", "#"))]
    yield "# what it is for\n" + text
    yield "\n".join([*lines[:at], "", *lines[at:]])
    yield "\n".join(f"{line}  # more" if n == starts[-1] else line for n, line in enumerate(lines))
    yield text.replace("one_f_one_b", "gpipe")
    yield text + "\nrecompute model\n"
    yield "\n".join(line for n, line in enumerate(lines) if n != rng.choice(starts))
    yield text + "\norder model.bwd -> model.fwd\n"


def answer_of(workspace: Workspace, source: Source, settings: Settings, cluster: str) -> Any:
    """All that a workspace says of a text."""
    on = load_cluster(cluster)
    try:
        candidate = workspace.candidate(source, settings, EXAMPLES)
        compiled = workspace.proved(candidate)
        report = workspace.simulate(candidate, on)
    except PlanError as error:
        return [render(d) for d in error.diagnostics]
    return compiled.program, report, [render(d) for d in compiled.warnings]


def said(answer: Any, cluster: str) -> Any:
    """The answer as its reader sees it, with every place."""
    if isinstance(answer, list):
        return answer
    program, report, warnings = answer
    lines = by_line_view(program, load_cluster(cluster), report).rows
    return program_files(program), shown_program(program), report_json(report), report.timeline, lines, warnings


@pytest.fixture(scope="module")
def kept() -> dict[tuple[str, str], Workspace]:
    """Workspaces of models on clusters, that go from plan to plan."""
    models, clusters = ("gpt:tiny,layers=4", "gpt:tiny,layers=3,batch=8"), ("a100x8", "h100x8")
    return {(model, on): Workspace(graph_of(model), load_cluster(on)) for model in models for on in clusters}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("plan", PLANS)
def test_edits_in_one_workspace_are_answered_as_in_a_new_one(kept: dict[tuple[str, str], Workspace], plan: str) -> None:
    rng, seen = random.Random(plan), 0
    text = read_source(EXAMPLES / f"{plan}.ssp").text
    settings = {n: rng.choice(values) for n, values in PARAMS.items() if f"\nparam {n} =" in text}
    here = rng.choice(list(kept))
    for edited in edits(rng, text):
        name, cluster = rng.choice([here, here, here, *kept])
        source = Source(f"{plan}.ssp", edited)
        for changed in (settings | {n: rng.choice(PARAMS[n]) for n in list(settings)[:1]}, settings):
            found = said(answer_of(kept[name, cluster], source, changed, cluster), cluster)
            new = Workspace(graph_of(name), load_cluster(cluster))
            assert found == said(answer_of(new, source, changed, cluster), cluster), (plan, edited, changed)
            seen += not isinstance(found, list)
    assert seen > 5  # that are plans


REPEATED = f"{Path(__file__).parent}/models/repeated.py:repeated"  # whose stages have copies of a mask


@pytest.mark.parametrize(
    ("plan", "model", "settings"),
    [
        ("megatron", "gpt:tiny,layers=4", {}),
        ("pipeline", REPEATED, {}),
        ("papers/alpa_moe", "moe_gpt:tiny", {"S": 2, "M": 4}),  # whose rows travel to their experts
    ],
)
def test_what_changes_no_task_is_not_lowered_again(
    plan: str, model: str, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, cluster = graph_of(model), load_cluster("a100x8")
    text = read_source(EXAMPLES / f"{plan}.ssp").text.replace("one_f_one_b", "gpipe")
    other = text.replace("gpipe", "one_f_one_b")
    fresh = compile_source(Source("a.ssp", f"\n{other}"), graph, settings, EXAMPLES, cluster).program
    workspace = Workspace(graph, cluster)
    first = workspace.candidate(Source("a.ssp", text), settings, EXAMPLES)
    monkeypatch.setattr("ssdsl.workspace.formed", None)
    ordered = workspace.candidate(Source("a.ssp", other), settings, EXAMPLES)
    assert ordered.lowered.program.functions is first.lowered.program.functions
    assert ordered.lowered.program.roles != first.lowered.program.roles
    monkeypatch.setattr("ssdsl.workspace.scheduled", None)
    monkeypatch.setattr("ssdsl.lower.lower.scheduled", None)
    moved = workspace.candidate(Source("a.ssp", f"\n{other}"), settings, EXAMPLES)
    assert moved.lowered.program.roles is ordered.lowered.program.roles
    assert moved.lowered.program == fresh


STATE = (
    "",
    "prefetch model.weights by 0",
    "bucket model.grads by 1",
    "keep model.weights through m",
    "keep model.weights through m in backward",
    "assign model.optimizer to host",
    'split model["h.*"].optimizer by matrix into dp',
)


def test_what_a_plan_says_of_state_is_lowered_again() -> None:
    graph, cluster = graph_of("gpt:tiny,layers=4"), load_cluster("a100x8")
    text = "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus\n"
    text += "split model.weights by row into dp\n"
    workspace, found = Workspace(graph, cluster), []
    for statement in STATE:
        source = Source("a.ssp", f"{text}{statement}\n")
        candidate = workspace.candidate(source, {}, EXAMPLES)
        fresh = compile_source(source, graph, {}, EXAMPLES, cluster)
        assert candidate.lowered.program == fresh.program, statement
        assert workspace.simulate(candidate, cluster) == simulate(fresh.program, source, cluster), statement
        found.append(fresh.program.flats)
    assert len({*found}) >= len(STATE) - 1  # a bucket of weights in parts is their layer


def test_an_order_that_needs_a_signal_is_priced_with_it() -> None:
    graph, cluster = graph_of("gpt:tiny,layers=4"), load_cluster("a100x8")
    text = read_source(EXAMPLES / "pipeline.ssp").text
    workspace, settings = Workspace(graph, cluster), {"S": 4, "M": 4}
    ordered = text + "\norder stage[0].fwd[m = 1] -> stage[3].fwd[m = 0]\n"
    twice = ordered + "order stage[0].bwd[m = 1] -> stage[3].bwd[m = 3]\n"
    for changed in (ordered, ordered.replace("m = 1", "m = 2"), twice):
        source = Source("a.ssp", changed)
        candidate = workspace.candidate(source, settings, EXAMPLES)
        fresh = compile_source(source, graph, settings, EXAMPLES, cluster)
        assert any(isinstance(m, Signal) for m in fresh.program.messages)
        assert workspace.simulate(candidate, cluster) == simulate(fresh.program, source, cluster)


def test_a_candidate_is_what_is_compiled_without_the_proof() -> None:
    graph, cluster = graph_of("gpt:tiny,layers=4"), load_cluster("a100x8")
    source = read_source(EXAMPLES / "megatron.ssp")
    workspace = Workspace(graph, cluster)
    candidate = workspace.candidate(source, {}, EXAMPLES)
    compiled = compile_source(source, graph, {}, EXAMPLES, cluster)
    assert workspace.proved(candidate).program == compiled.program
    assert workspace.simulate(candidate, cluster) == simulate(compiled.program, source, cluster)
    assert not hasattr(candidate, "program")  # so that nobody writes or runs it unproved


def test_a_workspace_that_forgets_answers_the_same() -> None:
    workspace = Workspace(graph_of("gpt:tiny,layers=4"))
    source = read_source(EXAMPLES / "megatron.ssp")
    before = workspace.compile(source, {}, EXAMPLES)
    workspace.clear()
    assert workspace.compile(source, {}, EXAMPLES).program == before.program
