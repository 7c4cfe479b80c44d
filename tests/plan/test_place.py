"""`mesh`, `assign`, `order`, `recompute`: where, in which order, and what is computed again."""

from collections import Counter

import pytest

from ssdsl.model.dims.layers import layers_by_path
from ssdsl.plan.plan import Phase
from ssdsl.text.diagnostic import PlanError

STAGES = "mesh gpus(pp = 2)\nlet stage = balance(model, 2)\nassign stage[s] to gpus[pp = s] for s in 0..2\n"


def test_meshes_take_consecutive_ranks(plan) -> None:
    made = plan('mesh a(dp = 2)\nmesh b(tp = 3, pp = 2)\nassign model["h.0"] to a\nassign model - model["h.0"] to b\n')
    assert [(m.name, m.first) for m in made.meshes] == [("a", 0), ("b", 2)]
    assert made.devices == 8


def test_meshes_of_a_loop_are_a_list(plan) -> None:
    made = plan(
        'let n = [2, 3]\nmesh gpus(tp = n[s]) for s in 0..2\nlet stage = cut(model, 2, before = ["h.1"])\n'
        "assign stage[s] to gpus[s] for s in 0..2\nsplit model by heads into tp\n"
    )
    assert [(m.name, m.first) for m in made.meshes] == [("gpus[0]", 0), ("gpus[1]", 2)]
    counts = {r.home.mesh: i.digit.parts for r in made.operators.values() if r.place for i in r.indices}
    assert counts == {"gpus[0]": 2, "gpus[1]": 3}


def test_placements(plan) -> None:
    made = plan(STAGES)
    assert {record.place.fixed for record in made.operators.values() if record.place} == {
        (("pp", 0),),
        (("pp", 1),),
    }
    assert sum(record.place is not None for record in made.operators.values()) == 44


def test_the_same_assignment_twice_is_one(plan) -> None:
    assert plan("mesh gpus(dp = 2)\nassign model to gpus\nassign model.linear to gpus\n").devices == 2


def test_stages_may_share_devices_in_turn(plan) -> None:
    text = "mesh gpus(pp = 2)\nlet stage = balance(model, 4)\nassign stage[s] to gpus[pp = s % 2] for s in 0..4\n"
    assert plan(text).of("linear_44").home.fixed == (("pp", 1),)


TWO = "mesh a(dp = 2)\nmesh b(dp = 4)\n"
HALVES = (
    'assign model["h.{0-1}"] | model["wte"] to a\nassign model["h.{2-3}"] | model["ln_f"] | model["lm_head"] to b\n'
)


@pytest.mark.parametrize(
    "text",
    [TWO + "split model by batch into m = 2, dp\n" + HALVES, TWO + HALVES + "split model by batch into m = 2, dp"],
)
def test_the_axis_of_an_index_is_that_of_the_place_wherever_the_plan_says_it(plan, text: str) -> None:
    """Also of an operator that no statement assigns: the loss is put beside the classifier."""
    made = plan(text)
    counts = {
        (r.home.mesh, tuple((i.name, i.digit.parts) for i in r.indices)) for r in made.operators.values() if r.place
    }
    assert counts == {("a", (("m", 2), ("dp", 2))), ("b", (("m", 2), ("dp", 4)))}
    assert made.of("cross_entropy_45").home.mesh == "b"


@pytest.mark.parametrize(
    ("meshes", "places", "note", "helped"),
    [
        (
            "mesh c(dp = 1)",
            'assign model["h.0"] to a',
            "`transformer.wte` is assigned to none of these meshes",
            "assign all",
        ),
        (
            "mesh c(tp = 2)",
            'assign model["h.0"] to a\nassign model - model["h.0"] to c',
            "`transformer.wte` is on `c`, which has no axis `dp`",
            "give that mesh the axis, too, `mesh c(tp = 2, dp = 1)`",
        ),
    ],
)
def test_an_axis_that_some_operators_lack(plan, meshes: str, places: str, note: str, helped: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(f"{TWO}{meshes}\nsplit model by batch into dp\n{places}\n")
    found = caught.value.diagnostics[0]
    assert found.code == "E0207" and found.text(found.note) == note and helped in found.text(found.help)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "E0250"),
        ("mesh gpus(dp = 2)", "E0252"),
        ("mesh gpus(dp = s) for s in 0..2", "E0251"),
        ("for s in 1..3:\n    mesh gpus(dp = s)", "E0251"),
        ("mesh gpus(dp = s) for s in 1..2\nmesh gpus(dp = s) for s in 1..2", "E0251"),
        ("mesh gpus(dp = s) for s in 1..3\nassign model to gpus", "E0210"),
        ("mesh gpus(dp = s) for s in 1..3\nassign model to gpus[2]", "E0211"),
        ('mesh gpus(dp = s) for s in 1..3\nsplit model by batch into dp\nassign model["h.*"] to gpus[0]', "E0207"),
        ("mesh gpus(dp = s) for s in 0..0\nassign model to gpus[0]", "E0211"),
        ("mesh gpus(dp = 2)\nassign model to gpus[tp = 0]", "E0254"),
        ("mesh gpus(dp = 2)\nassign model to gpus[dp = 2]", "E0255"),
        ("mesh gpus(dp = 2)\nassign model to gpus[dp = 0-1]", "E0255"),
        ("mesh gpus(dp = 2)\nassign model to gpus[dp = 0][dp = 0]", "E0246"),
        ("mesh gpus(dp = 2)\nassign model to gpus[dp = 0]\nassign model.linear to gpus", "E0253"),
        ("mesh gpus(dp = 2, dp = 2)", "E0251"),
        ("mesh gpus(dp = 70000)", "E0251"),
        ("mesh gpus(dp = model)", "E0210"),
        ("order by clock:\n    model.fwd at true", "E0210"),
        ("mesh gpus(pp = 2)\nsplit model by batch into pp\nassign model to gpus[pp = 0]", "E0256"),
    ],
)
def test_mistake(plan, text: str, code: str) -> None:
    assert plan.mistakes(text) == [code]


def test_order_is_one_fact(plan) -> None:
    made = plan(
        "split model by batch into m = 4\n" + STAGES + "order model.fwd[m = 1] -> stage[0][m = 0] -> stage[1].bwd\n"
    )
    first, second = made.orders
    assert (first.before.fixed, first.before.phase) == ((("m", 1),), Phase.FORWARD)
    assert first.after is second.before or first.after == second.before
    assert all((first.before.number in record.sets) == (record.place is not None) for record in made.operators.values())
    assert second.after.phase is Phase.BACKWARD


def test_an_index_out_of_range_names_no_task(plan) -> None:
    text = "split model by batch into m = {}\n" + STAGES + "order model[m = m] -> model[m = m + 1] for m in 0-1..4\n"
    assert len(plan(text.format(4)).orders) == 3
    assert plan(text.format(1)).orders == ()
    assert plan.warnings(text.format(1)) == ()  # of one part there is none to order it with
    assert [d.code for d in plan.warnings(text.format(2).replace("m + 1", "m + 2"))] == ["E0257"]


def test_schedules(plan) -> None:
    text = "use pipeline: {0}\nsplit model by batch into m = {1}\n" + STAGES + "{0}(stage, {1})\n"
    for micro in (1, 2, 4, 8):
        assert plan.warnings(text.format("gpipe", micro)) == ()
        made = plan(text.format("one_f_one_b", micro))
        fixed = {(dict(o.before.fixed).get("m", 0), dict(o.after.fixed).get("m", 0)) for o in made.orders}
        assert all(abs(a - b) <= 2 for a, b in fixed)


SCHEDULES = ("gpipe", "one_f_one_b", "eager_one_f_one_b", "zb_h1", "zb_h2", "v_half", "zb_v")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_for_other_micro_batches_than_the_split_makes_gets_a_warning(plan, schedule: str) -> None:
    text = f"use pipeline: {schedule}\nsplit model by batch into m = {{}}\n{STAGES}{schedule}(stage, {{}})\n"
    assert plan.warnings(text.format(4, 4)) == ()
    (more,) = plan.warnings(text.format(4, 8))
    assert (more.code, more.text(more.title)) == ("E0276", "`m` has 4 parts, and the order names m = 4 to 7")
    assert text.format(4, 8)[more.span.start : more.span.end].startswith(schedule)
    if schedule != "gpipe":  # which is no clock
        (fewer,) = plan.warnings(text.format(4, 2))
        assert (fewer.code, fewer.text(fewer.title)) == (
            "E0277",
            "`m` has 4 parts, and the clock names m = 0 to 1 only",
        )


@pytest.mark.parametrize(
    "orders",
    [
        "order stage[0].fwd[m = 0] -> stage[0].bwd[m = 1]",
        "order stage[0].fwd[m = m] -> stage[0].fwd[m = m + 1] for m in 0..4",
        "order stage[s].fwd[m = t - s] -> stage[s].bwd[m = t - s - 1] for t in 0..6, s in 0..2",
        "order by clock for t in 0..6, s in 0..2:\n    stage[s].fwd[m = t - s] at t\n",
        "order by clock for m in 0..5:\n    stage[0].fwd[m = m] at m\n    stage[1].fwd[m = m - 1] at m\n",
        "order by clock for s in 0..2:\n    stage[s].fwd[m = 0] at s\n",
        "order by clock for m in 0..2:\n    stage[0].fwd[m = m] at m\norder stage[0].fwd[m = 3] -> stage[0].bwd[m = 3]",
    ],
)
def test_schedules_may_go_past_the_first_and_the_last_part(plan, orders: str) -> None:
    assert plan.warnings("split model by batch into m = 4\n" + STAGES + orders) == ()


def test_state_is_split_by_row_in_the_number_of_its_words(plan) -> None:
    said = {"weights": "weights are", "grads": "grads are", "optimizer": "the optimizer's state is"}
    for state, words in said.items():
        with pytest.raises(PlanError) as raised:
            plan(f"mesh gpus(dp = 2)\nsplit model.{state} by batch into dp\n")
        assert raised.value.diagnostics[0].text(raised.value.diagnostics[0].title) == f"{words} split by `row`"


def test_recompute_units(plan) -> None:
    def units(line: str) -> list[int]:
        made = plan(STAGES + "split model by heads into c = 2\nsplit model by ffn into c = 2\n" + line + "\n")
        layers = layers_by_path(made.graph)
        marks = [
            (layers[made.graph.by_name[name].path], record.checkpoint.value)
            for name, record in made.operators.items()
            if record.checkpoint
        ]
        return [*Counter(marks).values()]

    assert units('recompute model["h.*"]') == [10] * 4
    assert units('recompute model["h.*.attn"] | model["h.*.mlp"]') == [3] * 8
    assert units("recompute model") == [1, 10, 10, 10, 10, 3]
    assert units("recompute model[c = any]") == [3] * 8
    assert units("recompute stage") == units("recompute model")
    assert units('recompute each("h.*")') == [10] * 4
    assert units('recompute model["h.0"]\nrecompute model["h.*"]') == [10] * 4
    assert units('recompute [model["h.0"], model["h.0"]]') == [10]


def test_recompute_twice(plan) -> None:
    apart = 'recompute [model["h.0.mlp"] | model["h.0.ln_2"]]\nrecompute [model["h.0.ln_2"] | model["h.0.attn"]]'
    thrice = 'recompute model["h.0"]\nrecompute model["h.0.mlp"]\nrecompute [model["h.0.mlp"] & model.gelu]'
    assert plan.mistakes(STAGES + apart) == ["E0221"]
    assert plan.mistakes(STAGES + thrice) == ["E0221"]


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_checkpoint_may_be_a_part_of_a_region_that_runs_again(plan, outer_first) -> None:
    lines = ['recompute model["h.*"]', 'recompute model["h.*.mlp"]', 'recompute model["h.*.attn"]']
    facts = plan(STAGES + "\n".join(lines if outer_first else [*lines[1:], lines[0]]))
    inside = {name: record for name, record in facts.operators.items() if record.within is not None}
    assert len({record.within for record in inside.values()}) == 4
    assert len({record.checkpoint for record in inside.values()}) == 3  # two, and none: norms and sums


def test_equal_layers_share_their_records_when_they_are_recomputed(plan) -> None:
    def records(line: str) -> int:
        return len({id(record) for record in plan(STAGES + line + "\n").operators.values()})

    assert records('recompute model["h.*"]') <= records("") + 2
