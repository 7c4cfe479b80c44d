"""The names that views and helps print are names that a plan takes, and a help that is followed leads on."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.fuzz.trial import try_plan
from ssdsl.lang.formatter.spell import spell_dim
from ssdsl.lang.parse import parse
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.paths import starred
from ssdsl.plan.plan import Plan
from ssdsl.runtime.options import Training
from ssdsl.show.tables.operators import dims_view, operators_view
from ssdsl.show.view import as_json, table
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source
from tests.captured import graph_of

MODELS = Path(__file__).parent.parent / "models"
ASSIGN = "assign model to gpus\n"
MESH = "mesh gpus(tp = 2)\n"
FOLLOWED = [  # a plan with a mistake, and the one that its help leads to: `{}` is the help's first words in backticks
    ("split model by head into tp", "split model by {} into tp"),
    ("split model by labels into tp", "split model by {} into tp"),
    ('split model by heads into tp\nsplit model["attn.c_attn"] | model["mlp"] by seq into tp', None),
]


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return graph_of("gpt:tiny")


def made(text: str, graph: Graph) -> tuple[Plan, tuple[Diagnostic, ...]]:
    return interpret_all(parse(Source("plan.ssp", text)), graph)


def mistake(text: str, graph: Graph) -> Diagnostic:
    with pytest.raises(PlanError) as caught:
        made(text, graph)
    return caught.value.diagnostics[0]


@pytest.mark.parametrize("file", ["tiny.py:chain_norm", "rooted.py:rooted", "einsums.py:einsums", "convnet.py:unet"])
def test_split_takes_what_show_dims_prints(file: str) -> None:
    graph = graph_of(f"{MODELS}/{file}")
    for row in dims_view(graph).rows:
        name, size, is_fixed = str(row[0]), row[1], "(all)" in str(row[5])
        plan, _ = made(
            f"mesh gpus(x = {size})\nsplit model by {spell_dim(name)} into x where possible\n{ASSIGN}", graph
        )
        cut = [op.dims[i.dim] for op in graph.operators for i in plan.of(op.name).indices]
        assert bool(cut) is not is_fixed, name
        assert all(name in (starred(dim.name), starred(graph.dim_names[dim.cls])) for dim in cut)


def test_quotes_are_for_a_table_and_no_part_of_a_name_in_json() -> None:
    view = dims_view(graph_of(f"{MODELS}/repeated.py:repeated"))
    assert "in" in [row["dimension"] for row in as_json(view)]
    console = Console(file=StringIO(), width=120)
    console.print(table(view))
    assert '"in"' in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_name_that_a_plan_has_in_quotes_is_shown_in_quotes() -> None:
    assert [*map(spell_dim, ("seq", "h.*.up.0", "h.*.weight.0_inner1", "into"))] == [
        "seq",
        "h.*.up.0",
        '"h.*.weight.0_inner1"',
        '"into"',
    ]


@pytest.mark.parametrize("file", ["tiny.py:chain_norm", "rooted.py:rooted"])
def test_paths_take_what_show_ops_prints(file: str) -> None:
    graph = graph_of(f"{MODELS}/{file}")
    plan, _ = made("mesh gpus(x = 1)\n" + ASSIGN, graph)
    for row in operators_view(plan).rows:
        path, _, kind = str(row[0]).rpartition(" ")
        made(f'mesh gpus(x = 1)\nlet some = model["{path}"].{kind}\n{ASSIGN}', graph)


@pytest.mark.parametrize(("wrong", "right"), FOLLOWED)
def test_help_is_followed(wrong: str, right: str | None, gpt: Graph) -> None:
    found = mistake(f"{MESH}{wrong}\n{ASSIGN}", gpt)
    words = re.findall(r"`([^`]*)`", found.text(found.help))
    if right is None:
        said = words[0] if words[0].startswith("split ") else f"split {words[0]} by seq into tp"
        right = wrong.rpartition("split ")[0] + said
    made(f"{MESH}{right.format(words[0].removesuffix(' ...'))}\n{ASSIGN}", gpt)


def test_an_axis_of_a_weight_names_its_dimension() -> None:
    text = MESH + "split model by {} into tp\n" + ASSIGN
    for model, name in ((f"{MODELS}/rooted.py:rooted", "first.weight.0"), ("gpt:tiny", "h.*.mlp.c_fc.weight.1")):
        graph = graph_of(model)
        exact, every = (cut(made(text.format(n), graph)[0]) for n in (name, "ffn"))
        assert exact and exact <= every


def placed_last(plan: Plan) -> set[str]:
    """The operators on the last device."""
    return {name for name, record in plan.operators.items() if record.place and record.place.fixed == (("pp", 1),)}


def cut(plan: Plan) -> set[str]:
    """The operators that some index cuts."""
    return {name for name, record in plan.operators.items() if record.indices}


def test_the_roots_own_operators(gpt: Graph) -> None:
    text = 'mesh gpus(pp = 2)\nassign model["{0}"] to gpus[pp = 1]\nassign model - model["{0}"] to gpus[pp = 0]\n'
    graph = graph_of(f"{MODELS}/rooted.py:rooted")
    own = placed_last(made(text.format("."), graph)[0])
    assert {op.kind for op in graph.operators if op.name in own} == {"gelu", "add", "sub", "pow", "sum", "div"}
    own = placed_last(made(text.format("h.*."), gpt)[0])
    assert {op.path for op in gpt.operators if op.name in own} == {f"transformer.h.{i}" for i in range(4)}
    own = placed_last(made(text.format("h.{1-2,3}.mlp"), gpt)[0])
    assert {op.path[:15] for op in gpt.operators if op.name in own} == {f"transformer.h.{i}" for i in (1, 2, 3)}


def test_operators_of_the_root_go_with_their_neighbours() -> None:
    """They get the place, the indices and the order of those that make their operands."""
    graph = graph_of(f"{MODELS}/rooted.py:rooted")
    stages = 'let stage = [model["first"] | model["second"], model["third"] | model["fourth"]]\n'
    text = "mesh gpus(pp = 2)\n" + stages + "assign stage[s] to gpus[pp = s] for s in 0..2\n"
    text += "split stage[0] | stage[1] by batch into m = 2\norder stage[1].bwd[m = 0] -> stage[0].fwd[m = 1]\n"
    plan, warnings = made(text, graph)
    assert [d.code for d in warnings] == ["E0380"]
    kinds = [op.kind for op in graph.operators if plan.of(op.name).place and op.name not in placed_last(plan)]
    assert kinds == ["linear", "gelu", "linear", "add"]
    moved = {op.name for op in graph.operators if op.kind in ("gelu", "add")}
    (order,) = plan.orders
    assert moved <= cut(plan) and all({order.before.number, order.after.number} & plan.of(op).sets for op in moved)


def test_a_plan_by_paths_equals_one_device() -> None:
    model = load(f"{MODELS}/rooted.py:rooted")
    text = """
use pipeline: one_f_one_b
mesh gpus(pp = 2)
let stage = [model["first"] | model["second"], model["third"] | model["fourth"]]
split stage[0] | stage[1] by batch into m = 4
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 4)
"""
    outcome = try_plan(model, capture(model), text, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text
