"""Selections, expressions and functions."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.model.graph import Graph, Operator
from ssdsl.plan.eval.balance import partition
from ssdsl.plan.paths import match_paths
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

PATHS = ("", "transformer.wte", "transformer.h.0", "transformer.h.0.attn.c_attn", "transformer.h.1.attn", "trunk.fc",
         "trunk#1.fc", "trunk#2.fc", "deep.h.0.mlp")  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("transformer", [{1, 2, 3, 4}]),
        ("transformer.h.*", [{2, 3}, {4}]),
        ("h.*", [{2, 3}, {4}, {8}]),
        ("h.0", [{2, 3}, {8}]),
        ("attn", [{3}, {4}]),
        ("h.*.attn", [{3}, {4}]),
        ("**.attn", [{3}, {4}]),
        ("transformer.**.c_attn", [{3}]),
        ("transformer.**", [{1, 2, 3, 4}]),
        ("transformer.w*", [{1}]),
        ("trunk", [{5}, {6}, {7}]),
        ("trunk#2", [{7}]),
        ("trunk#0", [{5}]),
        ("trunk.fc", [{5}, {6}, {7}]),
        ("**", [{0, 1, 2, 3, 4, 5, 6, 7, 8}]),
        ("*.fc", [{5}, {6}, {7}]),
        ("h", [{2, 3, 4}, {8}]),
        ("att", []),
        ("", []),
        ("(", []),
    ],
)
def test_paths(pattern: str, found: list[set[int]]) -> None:
    units = match_paths({p: frozenset([str(i)]) for i, p in enumerate(PATHS)}, pattern)
    assert [set(map(int, unit)) for unit in units] == found


def test_hostile_pattern() -> None:
    paths = {"a." * 50 + str(i): frozenset([str(i)]) for i in range(100)}
    start = process_time()
    match_paths(paths, ".".join(["**", "a"] * 4) + ".x")
    match_paths(paths, "a*" * 10 + "x")
    assert process_time() - start < 1


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("1 + 2 * 3 == 7", True),
        ("7 // 2 == 3 and 7 % 2 == 1", True),
        ("-2 < 1 and not (2 < 1)", True),
        ("len(0..5) == 5 and len([]) == 0", True),
        ("[1, 2] + [3] == [1, 2, 3]", True),
        ("[x * x for x in 1..4] == [1, 4, 9]", True),
        ("min(3, 2) == 2 and max([1, 5, 2]) == 5", True),
        ("(1 if false else 2) == 2", True),
        ("model == model.linear | (model - model.linear)", True),
        ('model["h.0"] & model["h.1"] == model - model', True),
        ("model.linear.fwd == model.linear", False),
        ("0.5 + 0.5 == 1", True),
        ("true == 1", True),
        ('len(each("h.*")) == 4', True),
        ("widths(8, 3, [4, 2, 1, 8]) == [2, 2, 4] and widths(6, 2, [3, 3]) == [3, 3]", True),
        ("widths(8, 3, [1], each = [4, 2, 2]) == [4, 2, 2]", True),
        ('each("h.*")[0] == model["h.0"]', True),
    ],
)
def test_expressions(plan, test: str, says: bool) -> None:
    text = f"mesh gpus(dp = 1)\nassign model to gpus\nrequire {test}\n"
    if says:
        plan(text)
    else:
        assert plan.mistakes(text) == ["E0228"]


def test_functions(plan) -> None:
    text = (
        "def pick(list, i):\n    for x in list:\n        if i == 0:\n            return x\n    return list[i]\n"
        "let twice(x) = 2 * x\nrequire twice(pick([3, 4], i = 1)) == 8\nrequire pick([3], 0) == 3\n"
        "mesh gpus(dp = 1)\nassign model to gpus\n"
    )
    plan(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("let x = balance(model, 0)", "E0215"),
        ("let x = balance(model, 99)", "E0248"),
        ("let x = balance(model, 1000000000000)", "E0248"),
        ("let x = balance(model, 1..99)", "E0248"),
        ("let x = balance(model, [])", "E0215"),
        ("let x = balance(model, [2, 0])", "E0288"),
        ("let x = balance(model, 0..3)", "E0288"),
        ("let x = balance(model, [2, -0.5])", "E0288"),
        ("let x = balance(model, [2, true])", "E0210"),
        ('let x = balance(model, [2, "h.1"])', "E0210"),
        ("let x = balance(model, model)", "E0210"),
        ('let x = cut(model, [1, 2, 1], before = ["h.1"])', "E0284"),
        ("let x = balance(3, 7)", "E0210"),
        ("let x = balance(model)", "E0229"),
        ("let x = balance(stages = 3)", "E0229"),
        ("let x = cut(model, 2, behind = 1)", "E0229"),
        ('let x = cut(model, 2, before = "h.1")', "E0210"),
        ('let x = cut(model, 3, before = ["h.1"])', "E0284"),
        ('let x = cut(model, 3, before = ["h.1", "h.0"])', "E0284"),
        ('let x = cut(model, 2, before = ["h.77"])', "E0240"),
        ('let x = cut(model.weights, 2, before = ["h.1"])', "E0210"),
        ("let x = widths(8, 3, 4)", "E0210"),
        ("let x = widths(8, 3, [])", "E0210"),
        ("let x = widths(model, 3, [1])", "E0210"),
        ("let x = widths(8, 0, [1])", "E0215"),
        ("let x = widths(8, 3, [1, 4, 8])", "E0286"),
        ("let x = widths(8, 3, [1, 2, 4], each = [4, 4])", "E0286"),
        ("let x = widths(8, 2, [1, 2, 4], each = [9, -1])", "E0286"),
        ("let x = widths(8, 2, [1, 2, 4], each = 4)", "E0210"),
        ("let x = model[0]", "E0210"),
        ("let x = (0..3)[0-1]", "E0211"),
        ("let x = 1 + model", "E0210"),
        ("let x = model + model", "E0210"),
        ("let x = model | 1", "E0210"),
        ("let x = 1 | 2", "E0210"),
        ("let x = true + 1", "E0210"),
        ("let x = 1 < model", "E0210"),
        ("let x = [1] + 2", "E0210"),
        ("let x = -model", "E0210"),
        ("let x = 0.5..2", "E0210"),
        ("let x = 3(4)", "E0210"),
        ("let x = max([])", "E0210"),
        ("let x = each(3)", "E0210"),
        ("let x = each(\"nothing\")", "E0240"),
        ("if 3:\n    let x = 1", "E0210"),
        ("for x in 3:\n    let y = 1", "E0210"),
        ("let model = 3", "E0202"),
        ("for none in 0..3:\n    let y = 1", "E0202"),
        ("let f(a, a) = 1\nlet x = f(1, 2)", "E0202"),
        ("let x = model.nothing", "E0241"),
        ("def f(g):\n    g(f)\nf(f)", "E0230"),
    ],
)  # fmt: skip
def test_mistake(plan, text: str, code: str) -> None:
    assert plan.mistakes(text) == [code]


def test_an_index_that_only_others_have_is_no_reason_to_split(plan) -> None:
    with pytest.raises(PlanError) as caught:
        plan('split model["h.0"] by batch into m = 2\norder model["h.1"].fwd[m = 0] -> model["h.1"].fwd[m = 1]\n')
    found = caught.value.diagnostics[0]
    assert found.code == "E0242"
    assert found.text(found.help).startswith("others of the model have it: select some of these too")


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ("model.backward", "did you mean `bwd`?"),
        ("model.parameters", "did you mean `weights`?"),
        ('model["h[3].mlp"]', "did you mean `h.3.mlp`?"),
        ('model["h.4.mlp"]', "did you mean `h.{0-3}.mlp` or `h.3.mlp`?"),
    ],
)
def test_words_of_pytorch_lead_to_those_of_the_language(plan, selection: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(f"let x = {selection}\n")
    (found,) = caught.value.diagnostics
    assert found.text(found.help) == said


def test_devices_that_no_widths_make_are_said_in_words_that_fit_one(plan) -> None:
    with pytest.raises(PlanError) as caught:
        plan("let x = widths(1, 3, [1, 2, 4])\n")
    (found,) = caught.value.diagnostics
    assert found.text(found.title) == "3 stages of 1, 2 or 4 devices cannot make 1 device"


@pytest.mark.parametrize(
    "text",
    [
        "for i in 0..10000, j in 0..10000, k in 0..10000:\n    let x = i\n",
        "let x = [i for i in 0..1000000000000]\n",
        "let x = max(0..1000000000000)\n",
        "let a0 = [1]\n" + "".join(f"let a{i + 1} = a{i} + a{i}\n" for i in range(60)),
        "let a0 = 7\n" + "".join(f"let a{i + 1} = a{i} * a{i}\n" for i in range(200)),
        "let f0(x) = x\n"
        + "".join(f"let f{i + 1}(x) = max({f'f{i}(x), ' * 9}x)\n" for i in range(8))
        + "let y = f8(1)\n",
        "for i in 0..1000000:\n    let x = (model | model) - model.linear\n",
        "for i in 0..90000:\n    let x = balance(model, 2)\n",
        'for i in 0..90000:\n    let x = model["**.attn"]\n',
        "split model by batch into m = 8\nfor i in 0..90000:\n    order model[m = 1] -> model[m = 2] -> model[m = 3]\n",
    ],
    ids=lambda text: text[:40],
)
def test_every_plan_ends(plan, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssdsl.plan.context.MOST_STEPS", 100_000)  # of 4,000,000, which take a minute
    start = process_time()
    assert plan.mistakes(text)[0] in ("E0231", "E0213", "E0250")
    assert process_time() - start < 10  # alone it takes a second; the machine may be busy


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.booleans(), st.data())
def test_partition_is_the_best(weights: list[int], equal: bool, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(weights)))
    shares = (1,) * parts if equal else tuple(data.draw(st.integers(1, 9)) for _ in range(parts))
    bounds = partition(weights, shares)
    assert [a for a, _ in bounds[1:]] == [b for _, b in bounds[:-1]]
    assert bounds[0][0] == 0 and bounds[-1][1] == len(weights) and all(a < b for a, b in bounds)

    def least(start: int, run: int) -> Fraction:
        if run == parts - 1:
            return Fraction(sum(weights[start:]), shares[run])
        ends = range(start + 1, len(weights) - (parts - run) + 2)
        return min(max(Fraction(sum(weights[start:end]), shares[run]), least(end, run + 1)) for end in ends)

    if len(weights) <= 8:
        costs = [Fraction(sum(weights[a:b]), share) for (a, b), share in zip(bounds, shares, strict=True)]
        assert max(costs) == least(0, 0)


def test_stages_are_runs_of_the_graph(plan) -> None:
    made = plan("mesh gpus(pp = 3)\nlet s = balance(model, 3)\nassign s[i] to gpus[pp = i] for i in 0..3\n")
    at = [place.fixed[0][1] for op in made.graph.operators if (place := made.of(op.name).place)]
    assert at == sorted(at) and set(at) == {0, 1, 2}


def test_stages_with_shares(plan) -> None:
    def stages(wanted: str) -> list[int]:
        """The number of layers, of 4, that each stage has some of alone."""
        text = 'mesh gpus(pp = 4)\nlet layers = model["h.*"]\nassign model - layers to gpus[pp = 0]\n'
        text += f"let s = balance(layers, {wanted})\nassign s[i] to gpus[pp = i] for i in 0..len(s)\n"
        made = plan(text)
        at = {op.name: place.fixed[0][1] for op in made.graph.operators if (place := made.of(op.name).place)}
        layers = [{at[op.name] for op in made.graph.operators if f".h.{n}" in op.path} for n in range(4)]
        return [sum(own == {stage} for own in layers) for stage in range(4)]

    assert stages("[3, 1]") == [3, 1, 0, 0] and stages("[1, 2, 1]") == [1, 2, 1, 0]
    assert stages("4") == stages("[1, 1, 1, 1]") == stages("[0.5, 0.5, 0.5, 0.5]")
    assert stages("[0.75, 0.25]") == stages("[s for s in [3, 1]]") == [3, 1, 0, 0]


def test_a_model_whose_only_repeated_modules_are_small(graph_of: Callable[[int], Graph]) -> None:
    """A U-Net has no list of layers but that of its small embedding of time: it is cut between any two modules."""
    from ssdsl.lang.parse import parse
    from ssdsl.plan.interpret import interpret_all
    from ssdsl.text.source import Source

    paths = "time.0 time.1 down up".split()
    names = {f"transformer.h.{n}": path for n, path in enumerate(paths)}

    def renamed(op: Operator) -> Operator:
        old = next((name for name in names if f"{op.path}.".startswith(f"{name}.")), None)
        if old is None:
            return op
        return replace(op, path=names[old] + op.path.removeprefix(old), flops=op.flops * (not names[old][-1].isdigit()))

    graph = graph_of(4)
    graph = replace(graph, operators=tuple(map(renamed, graph.operators)))
    text = "mesh gpus(pp = 2)\nlet s = balance(model, 2)\nassign s[i] to gpus[pp = i] for i in 0..2\n"
    made = interpret_all(parse(Source("plan.ssp", text)), graph, {}, Path())[0]
    work = [0, 0]
    for op in graph.operators:
        if place := made.of(op.name).place:
            work[place.fixed[0][1]] += op.flops
    assert max(work) < 0.75 * sum(work)


def test_a_loss_stays_with_a_head_that_is_heavier_than_a_layer(graph_of: Callable[[int], Graph]) -> None:
    from ssdsl.lang.parse import parse
    from ssdsl.plan.interpret import interpret_all
    from ssdsl.text.source import Source

    graph = graph_of(8)
    layer = sum(o.flops for o in graph.operators if o.path.startswith("transformer.h.0"))
    heavy = (replace(o, flops=layer * 3 // 2) if o.path == "lm_head" else o for o in graph.operators)
    graph = replace(graph, operators=tuple(heavy))
    text = "mesh gpus(pp = 8)\nlet s = balance(model, 8)\nassign s[i] to gpus[pp = i] for i in 0..8\n"
    made = interpret_all(parse(Source("plan.ssp", text)), graph, {}, Path())[0]
    at = {op.name: place.fixed[0][1] for op in graph.operators if (place := made.of(op.name).place)}
    (head,) = {at[o.name] for o in graph.operators if o.path == "lm_head"}
    assert {at[o.name] for o in graph.operators if o.name in at and o.path in ("", "lm_head")} == {head}


def test_a_deep_model(graph_of: Callable[[int], Graph]) -> None:
    from ssdsl.lang.assets import assets_folder
    from ssdsl.lang.parse import parse
    from ssdsl.lang.read import read_source
    from ssdsl.plan.interpret import interpret_all

    path = assets_folder("examples") / "megatron.ssp"
    big = graph_of(200)
    made = interpret_all(parse(read_source(path)), big, {"S": 8, "M": 8}, path.parent)[0]
    assert len(made.clocks[0].rows) == 2 * 8 * 8


def test_cuts_are_before_modules(plan) -> None:
    def homes(stages: str) -> dict[str, tuple[tuple[str, int], ...]]:
        made = plan(f"mesh gpus(pp = 2)\nlet s = {stages}\nassign s[i] to gpus[pp = i] for i in 0..2\n")
        return {name: record.home.fixed for name, record in made.operators.items() if record.place}

    assert homes("cut(model, 2)") == homes("balance(model, 2)")
    first, last = (homes(f'cut(model, 2, before = ["{path}"])') for path in ("h.0", "ln_f"))
    assert sum(at == (("pp", 0),) for at in first.values()) < sum(at == (("pp", 0),) for at in last.values())
    assert len(first) == len(last)


LISTED = 'mesh gpus(pp = 2)\nlet stage = [model["h.0"], model - model]\nassign model to gpus[pp = 0]\n'


@pytest.mark.parametrize(
    "text",
    [
        "split stage[s] by batch into m = 2 for s in 0..2",
        'recompute stage[s]["h.0"] for s in 0..2',
        "recompute part & model.layer_norm for part in stage",
        "recompute stage",
        "split stage[s].optimizer by row into pp for s in 0..2",
        "split model by batch into m = 2\norder stage[1].fwd[m = 0] -> stage[1].bwd[m = 0]",
        "split model by batch into m = 2\norder stage[s].fwd[m = 0] -> stage[s].bwd[m = 0] for s in 0..2",
    ],
)
def test_items_of_a_list_may_be_empty(plan: Any, text: str) -> None:
    assert {d.code for d in plan.warnings(LISTED + text)} <= {"E0257"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("recompute stage[1]", "E0271"),
        ("split stage[1] by batch into m = 2", "E0271"),
        ("recompute [stage[0], model - model]", "E0271"),
        ('recompute stage[0]["h.1"]', "E0271"),
        ('let x = stage[1]["h.77"]', "E0240"),
        ("let x = stage[1].layer_nrm", "E0241"),
        ("recompute (stage[0] - stage[0]) | (model - model)", "E0243"),
        ("recompute model - stage[0] - model", "E0243"),
    ],
)
def test_what_selects_nothing_at_all_is_named(plan: Any, text: str, code: str) -> None:
    if code == "E0271":
        assert [d.code for d in plan.warnings(LISTED + text)] == [code]
    else:
        assert plan.mistakes(LISTED + text) == [code]
