"""What the playground's page is answered: stages of plain values, whatever the plan is."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.header import header_of
from ssdsl.lang.read import LARGEST_BYTES
from ssdsl.model.graph_file import write_graph
from ssdsl.playground import answer
from ssdsl.playground.answer import MOST_WORKSPACES, Playground
from ssdsl.playground.catalogue import EXAMPLES, MODELS, PlanExample, catalogue, text_of_example, timeline_page
from ssdsl.text.source import Source
from tests.captured import graph_of

TINY = "gpt:tiny"
HEADER = f"# for: --model {TINY} --cluster a100x8"
PLAN = f"""\
{HEADER} --set T=2
param T = 4 "tensor-parallel width"
mesh gpus(tp = T)
split model by heads into tp
split model by ffn into tp
assign model to gpus
"""
STAGES = ["read", "step", "traffic", "proof", "advice"]


@pytest.fixture
def playground() -> Playground:
    """A playground with the graph of a small model."""
    return Playground({TINY: graph_of(TINY)})


def asked(playground: Playground, text: str, **more: str) -> list[dict[str, Any]]:
    """The stages of an answer, as the page gets them."""
    request = {"text": text, "name": "plan.ssp", "model": TINY, "cluster": "a100x8", **more}
    return [json.loads(json.dumps(stage, allow_nan=False)) for stage in playground.answers(request)]


def codes(stages: list[dict[str, Any]]) -> list[str]:
    return [one["code"] for stage in stages for one in stage["diagnostics"]]


def test_a_plan_is_answered_stage_by_stage(playground: Playground) -> None:
    read, step, traffic, proof, _ = stages = asked(playground, PLAN)
    assert [stage["stage"] for stage in stages] == STAGES and not codes(stages)
    assert (read["model"], read["cluster"]) == (TINY, "a100x8")
    assert read["params"] == [{"name": "T", "value": 2, "help": "tensor-parallel width"}]
    assert dict(step["figures"])["devices"] == "2"
    assert [row["ranks"] for row in step["memory"]] == ["0-1"]
    assert sum(part["share"] for part in step["memory"][0]["parts"]) <= 1
    assert step["timeline"]["text"] == PLAN and step["timeline"]["events"]["row"]
    rows = traffic["communication"]["rows"]
    assert [row[0] for row in rows].count("all_reduce tp") > 1
    assert {len(row) for row in rows} == {len(traffic["communication"]["columns"])}
    assert proof["proof"].startswith("proved in ")


def test_the_header_comes_before_the_request(playground: Playground) -> None:
    read, *_ = asked(playground, PLAN, model="other", cluster="laptop")
    assert (read["model"], read["cluster"]) == (TINY, "a100x8")
    read, *_ = asked(playground, PLAN.partition("\n")[2], cluster="h100x8")
    assert (read["model"], read["cluster"], read["params"][0]["value"]) == (TINY, "h100x8", 4)


def test_warnings_come_with_the_proof(playground: Playground) -> None:
    stages = asked(playground, PLAN.replace("mesh", 'param U = 1 "no one reads it"\nmesh'))
    (warning,) = stages[STAGES.index("proof")]["diagnostics"]
    assert (warning["code"], warning["severity"], warning["line"]) == ("E0273", "warning", 3)
    assert warning["explanation"]


WRONG: Mapping[str, tuple[str, list[str]]] = {
    "two of syntax": (PLAN.replace("split model by heads", "splt model by heads") + "let x = (1\n", ["E0110", "E0114"]),
    "two of names": (PLAN.replace("heads into tp", "head into tp").replace("ffn", "fn"), ["E0204", "E0204"]),
    "no statement": ("", ["E0250"]),
    "no option": (PLAN.replace("--cluster", "--clusters"), ["E0130"]),
    "no number": (PLAN.replace("T=2", "T=two"), ["E0130"]),
    "no cluster": (PLAN.replace("a100x8", "a10x8"), ["E0601"]),
    "too many devices": (PLAN.replace("T=2", "T=4").replace("a100x8", "a100x2"), ["E0610"]),
    "not a divisor": (PLAN.replace("T=2", "T=3"), ["E0203"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_the_last_stage(name: str, playground: Playground) -> None:
    text, expected = WRONG[name]
    stages = asked(playground, text)
    assert codes(stages) == expected
    assert stages[-1]["stage"] == "mistakes" and all(one["message"] for one in stages[-1]["diagnostics"])


def test_mistakes_of_syntax_and_of_names_are_told_together(playground: Playground) -> None:
    text = f"{HEADER}\nmesh gpus(dp = 2\nsplit model by batchh into dp\nasign model to gpus\n"
    *_, last = asked(playground, text)
    found = [(one["code"], one["edits"][0]["text"]) for one in last["diagnostics"]]
    assert found == [("E0114", ")"), ("E0204", "batch"), ("E0110", "assign")]


def test_an_order_that_cannot_be_is_told_with_its_place(playground: Playground) -> None:
    text = f"""\
{HEADER}
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
order stage[1].fwd[m = 0] -> stage[0].fwd[m = 0]
"""
    *_, last = asked(playground, text)
    assert last["stage"] == "mistakes"
    assert [(one["code"], one["line"]) for one in last["diagnostics"]] == [("E0403", 6)]


@pytest.mark.parametrize(
    "text", ["\0", "é" * 10, "(" * 1000, "\t\tx\n", "#" * (LARGEST_BYTES + 1), "if 1:\n" * 200, "\ud800"]
)
def test_no_text_is_too_odd(text: str, playground: Playground) -> None:
    assert {stage["stage"] for stage in asked(playground, text)} <= {"read", "mistakes"}


def test_warnings_of_check_are_told(playground: Playground) -> None:
    text = f"{HEADER}\nmesh gpus(dp = 2, tp = 2)\nsplit model by batch into dp\nassign model to gpus\n"
    assert codes(asked(playground, text)) == ["E0267"]
    assert codes(asked(playground, f"{text}recompute model.add\n")) == ["E0267", "E0296"]


def test_a_model_without_a_graph_is_wanted(playground: Playground) -> None:
    (read,) = asked(playground, PLAN.replace(TINY, "gpt:70b"))
    assert read["wants"] == "gpt:70b"


def test_a_failure_of_the_compiler_is_one_sentence(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(answer, "read_plan", fails)
    *_, last = asked(playground, PLAN)
    assert (last["stage"], last["bug"]) == ("bug", "RecursionError: too deep")


def test_a_graph_of_ones_own(playground: Playground, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(write_graph(graph_of(TINY), {"model": "mine.py:net"}))
    said = playground.add_graph("mine.graph", path)
    assert (said["model"], said["origin"], said["diagnostics"]) == ("mine.graph", "mine.py:net", [])
    stages = asked(playground, PLAN.replace(TINY, "mine.graph"))
    assert [stage["stage"] for stage in stages] == STAGES
    path.write_bytes(path.read_bytes()[:-100])
    assert [one["code"] for one in playground.add_graph("cut.graph", path)["diagnostics"]] == ["E0319"]
    assert "cut.graph" not in playground.graphs


def test_answers_do_not_depend_on_earlier_ones(playground: Playground) -> None:
    texts = [PLAN, PLAN.replace("T=2", "T=4"), f"# a comment\n{PLAN}", PLAN.replace("a100x8", "h100x8"), PLAN]
    for text in texts:
        for stage, fresh in zip(asked(playground, text), asked(Playground(playground.graphs), text), strict=True):
            if stage["stage"] != "proof":  # which says how long it took
                assert stage == fresh


def test_the_last_workspaces_are_kept(playground: Playground) -> None:
    for count in (1, 2, 4, 8, 16):
        asked(playground, PLAN.replace("a100x8", f"a100x{8 * count}"))
    assert len(playground.workspaces) == MOST_WORKSPACES


def test_it_needs_no_torch() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'numpy', 'networkx', 'typer')))"
    command = [sys.executable, "-c", f"{blocked}; import ssdsl.playground.answer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# -- the catalogue -----------------------------------------------------------------------------------------------------

LARGE = [example for example in EXAMPLES if TINY not in example.options]


def test_the_catalogue() -> None:
    found = json.loads(json.dumps(catalogue("abc")))
    assert found["version"].endswith("+abc") and {"split", "assign", "order"} <= {*found["keywords"]}
    assert [model["name"] for model in found["models"]] == MODELS
    for cluster in found["clusters"]:
        assert load_cluster(cluster["name"]).size == cluster["devices"]
    for example in found["examples"]:
        assert header_of(Source("", example["text"])).given("--model") in MODELS
    assert {example["options"].split()[1] for example in catalogue("", [TINY])["examples"]} == {TINY}


def test_a_timelines_page_has_the_style_and_the_script_before_its_own() -> None:
    page = timeline_page("i { color: red }\n", "given();\n")
    assert page.index("i { color: red }") < page.index("</style>")
    assert page.index('id="timeline">{}</script>') < page.index("given();") < page.index('"use strict"')


def proves(example: PlanExample) -> None:
    text = text_of_example(example)
    model = header_of(Source("", text)).given("--model")
    assert model is not None
    stages = asked(Playground({model: graph_of(model)}), text)
    assert [stage["stage"] for stage in stages] == STAGES
    assert codes(stages) == ["E0614"] * (example.plan == "experts")


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in LARGE], ids=str)
def test_examples_are_right(example: PlanExample) -> None:
    proves(example)


@pytest.mark.slow
@pytest.mark.parametrize("example", LARGE, ids=str)
def test_examples_of_large_models_are_right_and_fit(example: PlanExample) -> None:
    proves(example)
