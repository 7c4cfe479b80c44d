"""`split`: which operators get which indices."""

from pathlib import Path

import pytest

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Dim, Graph
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan, State
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

MESH = "mesh gpus(dp = 2, tp = 2)\n"
ASSIGN = "assign model to gpus\n"


def indices(plan: Plan, path: str) -> list[tuple[str, int, str]]:
    """Name, count and dimension of each index of the first operator with this path."""
    op = next(op for op in plan.graph.operators if op.path == path)
    return [(i.name, i.digit.parts, op.dims[i.dim].name) for i in plan.of(op.name).indices]


def test_first_index_is_the_outermost(plan) -> None:
    made = plan(MESH + "split model by batch into dp, m = 4\n" + ASSIGN)
    assert indices(made, "lm_head") == [("dp", 2, "batch"), ("m", 4, "batch")]


def test_data_operators_are_split_and_constants_are_not(plan) -> None:
    made = plan(MESH + "split model by batch into dp\nsplit model by seq into m = 2\n" + ASSIGN)
    assert made.of("shift_1").indices and not made.of("mask_0").indices
    assert made.of("shift_1").place is None


def test_plain_name_is_the_first_of_two(plan) -> None:
    made = plan(MESH + "split model.attention by seq into m = 2\n" + ASSIGN)
    assert indices(made, "transformer.h.0.attn") == [("m", 2, "seq")]


def test_one_part_is_no_index_but_is_remembered(plan) -> None:
    text = "mesh gpus(tp = {})\nsplit model by heads into tp\nsplit model[tp = none] by batch into m = 2\n" + ASSIGN
    one, two = plan(text.format(1)), plan(text.format(2))
    assert indices(one, "transformer.h.0.attn") == []
    assert [indices(p, "lm_head") for p in (one, two)] == [[("m", 2, "batch")]] * 2


def test_the_same_fact_twice_is_one(plan) -> None:
    made = plan(MESH + "split model by batch into dp\nsplit model by batch into dp = 2\n" + ASSIGN)
    assert indices(made, "lm_head") == [("dp", 2, "batch")]


def test_sizes(plan) -> None:
    made = plan(MESH + "split model by batch into m = [3, 5]\n" + ASSIGN)
    assert made.of("linear_44").indices[0].digit.sizes == (3, 5)
    made = plan(MESH + "split model by batch into m = [4, 4]\n" + ASSIGN)
    assert made.of("linear_44").indices[0].digit.sizes is None


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        ("parts [[0, 3], [1, 2]]", (((0, 2), (6, 8)), ((2, 6),))),
        ("parts [[3, 0], [2, 1]]", (((0, 2), (6, 8)), ((2, 6),))),
        ("= [1, 3, 4] parts [[0, 2], [1]]", (((0, 1), (4, 8)), ((1, 4),))),
        ("= 4 parts [[0, 1], [2, 3]]", None),  # equal parts, one behind the other
        ("parts [[1], [0]]", (((4, 8),), ((0, 4),))),
        ("parts [[k, 3 - k] for k in 0..2]", (((0, 2), (6, 8)), ((2, 6),))),
    ],
)
def test_parts_of_chunks(plan, parts: str, at: object) -> None:
    made = plan(MESH + f"split model by batch into dp {parts}\n" + ASSIGN)
    assert made.of("linear_44").indices[0].digit == Digit(2, at=at)


def test_a_cut_of_unequal_parts_divides_each(plan) -> None:
    made = plan(MESH + "split model by batch into m = [2, 6], dp\n" + ASSIGN)
    assert [i.name for i in made.of("linear_44").indices] == ["m", "dp"]
    assert plan.mistakes(MESH + "split model by batch into m = [3, 5], dp\n" + ASSIGN) == ["E0203"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("split model by head into tp", "E0204"),
        ("split model by heads into tp = 5", "E0203"),
        ("split model by batch into dp, m = 8", "E0203"),
        ("split model.layer_norm by hidden into tp", "E0206"),
        ("split model by batch into x", "E0207"),
        ("split model by batch into dp = 4", "E0208"),
        ("split model by batch into m = [1, 2]", "E0209"),
        ("split model by batch into m = [8, 0]", "E0215"),
        ("split model by batch into m = model", "E0210"),
        ("split model by batch into dp parts 2", "E0210"),
        ("split model by batch into dp parts [[0, 1], 2]", "E0210"),
        ("split model by batch into dp chunks [[0], [1]]", "E0263"),
        ("split model by batch into dp parts [[0, 1], []]", "E0264"),
        ("split model by batch into dp parts [[0, 1], [1, 2]]", "E0264"),
        ("split model by batch into dp parts [[0, 1], [3, 2], [5]]", "E0264"),
        ("split model by batch into dp = 3 parts [[0, 1], [3, 2]]", "E0264"),
        ("split model by batch into dp parts [[0, 1], [2]]", "E0203"),
        ("split model.weights by row into dp parts [[0], [1]]", "E0218"),
        ("split 3 by batch into dp", "E0210"),
        ("split model.fwd by batch into dp", "E0244"),
        ("split model - model by batch into dp", "E0243"),
        ("split model by heads into tp\nsplit model by ffn into tp\nsplit model.linear by batch into tp", "E0205"),
        ("split model by batch into tp = 1", "E0208"),
        ("split model.weights by row into dp = 2", "E0218"),
        ("split model.weights by row into dp = [0.5, 1]", "E0210"),
        ("split model.optimizer by matrix into dp = [3, 1]", "E0218"),
    ],
)
def test_mistake(plan, line: str, code: str) -> None:
    assert plan.mistakes(MESH + line + "\n" + ASSIGN) == [code]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("split model by batch into dp = 3", "choose the number of devices along `dp`: dp = 2"),
        ("split model by batch into dp parts [[0, 1]]", "`into dp` alone: its parts are those of the axis; or list 2"),
        ("split model by batch into dp parts [[0, 1]]", "`dp` has 1 part, and the axis"),
    ],
)
def test_a_number_of_parts_beside_an_axis(graph: Graph, line: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("a.ssp", MESH + line + "\n" + ASSIGN)), graph)
    assert said in render(caught.value.diagnostics[0])


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (  # what the plan has written is changed last
            "param M = 8\nmesh gpus(way = 2)\nsplit model by batch into m = M, way\n",
            "choose a number whose product with way = 2 divides 8: M = 4, 2 or 1",
        ),
        (
            'mesh gpus(sp = 2)\nsplit model by seq into sp\nsplit model["h.*.attn"] by heads into sp\n',
            "or put this statement in front of the other, and `[sp = none]` behind what that one splits",
        ),
        (
            "mesh gpus(cp = 2)\nsplit model by seq into cp parts [[0, 1], [2]]\n",
            "list as many chunks as divide 16: 16, 8, 4 or 2",
        ),
        ("mesh gpus(dp = 2)\nsplit model by batch into m = [9, -1]\n", "cannot cut into a part of size -1"),
    ],
)
def test_the_change_to_make(graph: Graph, plan: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("a.ssp", plan + ASSIGN)), graph)
    assert said in render(caught.value.diagnostics[0])


def test_independent_mistakes_are_reported_together_and_their_consequences_are_not(plan) -> None:
    text = "mesh gpus(dp = 0)\nlet a = modle\nsplit a by batch into dp\nsplit model by bach into m = 2\n"
    text += "order model[m = 0] -> a\nassign model to gpus\n"
    assert plan.mistakes(text) == ["E0251", "E0201", "E0204"]


def test_many_mistakes_end(plan) -> None:
    assert len(plan.mistakes("let x = y\n" * 50)) == 20


def test_state(plan) -> None:
    made = plan(MESH + 'split model["h.0.mlp"].optimizer by row into dp, tp\n' + ASSIGN)
    (shard,) = made.state.shards
    assert shard.state is State.OPTIMIZER and shard.axes == ("dp", "tp")
    assert shard.weights == {"transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight"}


def test_dim(plan) -> None:
    made = plan(MESH + "dim width = model.gelu.ffn\nsplit model by width into tp\n" + ASSIGN)
    assert indices(made, "transformer.h.0.mlp.c_fc") == [("tp", 2, "ffn")]
    assert plan.mistakes("dim ffn = model.gelu.ffn") == ["E0202"]
    assert plan.mistakes("dim width = model.gelu.fnn")[0] == "E0204"


def test_use_of_a_file(plan, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "mine.ssp").write_text('use "other.ssp": cut\ndef both(ops):\n    cut(ops)\nassign 3 to 4\n')
    (tmp_path / "below" / "other.ssp").write_text("def cut(ops):\n    split ops by batch into dp\n")
    made = plan(MESH + 'use "below/mine.ssp": both\nboth(model)\n' + ASSIGN, tmp_path)
    assert indices(made, "lm_head") == [("dp", 2, "batch")]


def test_use_never_leaves_the_folder(plan, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "secret.ssp").write_text("let x = 1\n")
    (tmp_path / "plans" / "link.ssp").symlink_to(tmp_path / "secret.ssp")
    for name in ("../secret.ssp", str(tmp_path / "secret.ssp"), "link.ssp", "/etc/passwd"):
        assert plan.mistakes(f'use "{name}": x\n', tmp_path / "plans")[0] == "E0235"
    for name in ("", "nothing.ssp", ".", "\x00", "a" * 10_000):
        assert plan.mistakes(f'use "{name}": x\n', tmp_path / "plans")[0] == "E0234"


def test_split_where_possible(plan) -> None:
    text = "mesh gpus(tp = 8)\nsplit model by heads into tp where possible\nsplit model by ffn into tp where possible\n"
    text += "split model by channels into tp where possible\n" + ASSIGN
    made = plan(text)
    assert {op.kind for op in made.graph.operators if made.of(op.name).indices} == {"linear", "gelu"}
    assert [d.code for d in plan.warnings(text)] == ["E0381"]
    assert not plan.warnings(text + "split model[tp = none] by batch into tp where possible\n")
    sizes = "mesh gpus(tp = 2)\nsplit model by heads into tp = [1, 2] where possible\n" + ASSIGN
    (warning,) = (d for d in plan.warnings(sizes) if d.code == "E0381")
    assert warning.text(warning.title).endswith("the parts' sizes add up to 3")
    assert "give sizes that add up to 12" in warning.text(warning.help)
    chunks = "mesh gpus(tp = 2)\nsplit model by heads into tp parts [[0, 2, 4], [1, 3]] where possible\n" + ASSIGN
    (warning,) = (d for d in plan.warnings(chunks) if d.code == "E0381")
    assert warning.text(warning.title).endswith("5 chunks do not divide it")
    both = MESH + "split model by ffn into tp\nsplit model by hidden into tp where possible\n" + ASSIGN
    assert {len(record.indices) for record in plan(both).operators.values() if record.indices} == {1}


def test_of_several_indices_those_cut_that_divide(plan) -> None:
    """`heads` are 12, `ffn` is 64."""
    made = plan("mesh gpus(a = 4, b = 2)\nsplit model by heads into a, b where possible\n"
                "split model by ffn into a, b where possible\n" + ASSIGN)  # fmt: skip
    assert indices(made, "transformer.h.0.attn") == [("a", 4, "heads")]
    assert indices(made, "transformer.h.0.mlp.c_fc") == [("a", 4, "ffn"), ("b", 2, "ffn")]


def test_a_misspelt_dimension_is_not_hidden_by_a_missing_axis(plan) -> None:
    with pytest.raises(PlanError) as caught:
        plan("split model by hedas into tp\n" + MESH + ASSIGN)
    assert [d.code for d in caught.value.diagnostics] == ["E0204", "E0207"]


def with_dims(graph: Graph, names: dict[str, Dim]) -> Graph:
    """The graph with another first dimension for some operators."""
    changed = (replace(o, dims=(names[o.name], *o.dims[1:])) if o.name in names else o for o in graph.operators)
    return replace(graph, operators=tuple(changed), dim_names=graph.dim_names | {d.cls: d.name for d in names.values()})


def test_the_name_of_an_axis_begins_at_any_segment(graph: Graph) -> None:
    dims = {"linear_41": "volume.grid.1", "linear_44": "line.0.grid.1", "gelu_10": "line.1.grid.1"}
    made = with_dims(graph, {op: Dim(name, 8, 90 + k) for k, (op, name) in enumerate(dims.items())})

    def split_by(name: str) -> set[str]:
        text = f'mesh gpus(tp = 2)\nsplit model by "{name}" into tp\nassign model to gpus\n'
        records = interpret_all(parse(Source("plan.ssp", text)), made)[0].operators
        return {name for name, record in records.items() if record.indices}

    for name in ("grid.1", "*.grid.1"):
        assert split_by(name) == set(dims)
    assert split_by("line.*.grid.1") == {"linear_44", "gelu_10"}
    assert split_by("volume.grid.1") == {"linear_41"}


def test_what_nobody_places_stays_whole_where_it_does_not_divide(graph: Graph) -> None:
    """Index arithmetic has dimensions that no view shows: they are no mistake of the user."""
    made = with_dims(graph, {"shift_1": Dim("heads", 2, 90), "gelu_10": Dim("heads", 6, 91)})

    def split_into(tp: int, where: str = "") -> Plan | str:
        text = f"mesh gpus(tp = {tp})\nsplit model by heads into tp {where}\nassign model to gpus\n"
        try:
            return interpret_all(parse(Source("plan.ssp", text)), made)[0]
        except PlanError as error:
            return render(error.diagnostics[0])

    three = split_into(3)
    assert isinstance(three, Plan) and three.of("gelu_10").indices and not three.of("shift_1").indices
    four = split_into(4)
    assert isinstance(four, str) and "has heads = 6\n" in four and "write `where possible`" in four
    assert isinstance(split_into(4, "where possible"), Plan)
    sizes = split_into(2, "= [5, 7]")  # of 12 heads: no sizes add up to 6 too
    assert isinstance(sizes, str) and "`heads` has 6" in sizes and "write `where possible`" in sizes
    assert isinstance(split_into(2, "= [5, 7] where possible"), Plan)


@pytest.mark.parametrize("tp", [2, 3])
def test_a_dimension_of_operators_that_nobody_places_is_none(graph: Graph, tp: int) -> None:
    """Such as the batch of two inputs that are joined before a network sees them: to cut it would cut no work."""
    hidden = with_dims(graph, {"shift_1": Dim("rows", 2, 90)})
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("plan.ssp", f"split model by rows into tp = {tp}\n")), hidden)
    (found,) = caught.value.diagnostics
    assert found.code == "E0204" and "`rows`" not in found.text(found.note)


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("split model by ffn into tpp = 4", True),
        ("split model by ffn into m = 2", False),
        ("split model by batch into dpp = 2, dp", False),
        ("split model by batch into dp, dpp = 4", False),
        ("split model by ffn into tp, tpp = 2", False),
        ("split model by ffn into chunk = 2", False),
    ],
)
def test_a_slip_in_the_name_of_an_axis(plan, line: str, warned: bool) -> None:
    found = plan.warnings(MESH + line + "\n" + ASSIGN)
    assert [d.code for d in found] == ["E0280"] * warned


@pytest.mark.parametrize(
    "line",
    [
        "split model by ffn into tpp = 2",
        "split model by batch into ddp = 2",
        "split model by batch into m = 2, ddp = 2",
    ],
)
def test_an_index_like_an_axis_with_as_many_parts_is_refused(plan, line: str) -> None:
    assert plan.mistakes(MESH + line + "\n" + ASSIGN) == ["E0292"]


def test_an_axis_that_the_devices_fix_is_in_use(plan) -> None:
    text = "mesh gpus(stage = 2)\nsplit model by batch into stages = 4\nassign model to gpus[stage = 0]\n"
    assert not plan.warnings(text)


@pytest.mark.parametrize(
    ("devices", "said", "then"),
    [
        (2, "give the parts' sizes: `into tp = [25129, 25128]`\nor make `rows` a multiple of 2", "= [25129, 25128]"),
        (8, "`into tp = [(50257 + k) // 8 for k in 0..8]`", "= [(50257 + k) // 8 for k in 0..8]"),
        (30, "choose a divisor of 50257: tp = 29 in its mesh", None),
    ],
)
def test_where_no_near_number_divides_the_sizes_are_the_help(
    graph: Graph, devices: int, said: str, then: str | None
) -> None:
    """As GPT-2's vocabulary, 29 x 1733: nobody who asks for 2 devices has 29."""
    wide = with_dims(graph, {"linear_41": Dim("rows", 50257, 90)})

    def warned(split: str) -> tuple[Diagnostic, ...]:
        text = f"mesh gpus(tp = {devices})\nsplit model by rows into tp {split}\nassign model to gpus\n"
        return interpret_all(parse(Source("plan.ssp", text)), wide)[1]

    with pytest.raises(PlanError) as caught:
        warned("")
    (found,) = caught.value.diagnostics
    assert said in found.text(found.help)
    if then is not None:
        assert not warned(then), "the help works"
        (left,) = warned("where possible")
        assert f"`into tp {then}`" in left.text(left.help)


@pytest.mark.parametrize(("name", "today"), [("seq.1", "`seq.keys` or `seq`"), ("ffn.0", "`ffn` or `hidden`")])
def test_a_numbered_name_leads_to_the_one_without_a_number(plan, name: str, today: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(f'mesh gpus(tp = 2)\nsplit model by "{name}" into tp\nassign model to gpus\n')
    (found,) = caught.value.diagnostics
    assert found.text(found.help) == f"here it may be {today}"
