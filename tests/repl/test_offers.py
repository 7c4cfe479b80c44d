"""Completion: words of the grammar, and what the model and the plan have to offer at a place."""

from typing import Any

import pytest

from ssdsl.lang.nodes import STATEMENTS

Entering = Any


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("sp", ["split"]),
        ("split mod", ["model"]),
        ("split model b", ["by"]),
        ("split model ", ["by"]),
        ('split model["', ["transformer", "h", "attn", "c_attn", "*"]),
        ('split model["h.', ["*", "0", "3"]),
        ('split model["transformer.h.*.', ["ln_1", "attn", "ln_2", "mlp"]),
        ('split model["h.*.attn.c_', ["c_attn", "c_proj"]),
        ("split model.add", ["add", "addmm"]),
        ('split model["h.*.attn"].', ["addmm", "weights", "optimizer"]),
        ("split model by ", ["batch", "heads", "ffn", "vocab"]),
        ("split model by he", ["heads", "head_dim"]),
        ("split model.weights by ", ["row"]),
        ("split model by heads into ", ["pp", "tp", "m"]),
        ("split model by heads into tp, ", ["pp", "m"]),
        ("split model by heads into tp where ", ["possible"]),
        ("assign model to ", ["gpus"]),
        ("assign model to gpus[", ["pp = ", "tp = "]),
        ("assign model to gpus[pp = 0, ", ["tp = "]),
        ("assign stage[s] to gpus[pp = s] f", ["for"]),
        ("order stage[0][", ["m = ", "tp = ", '"']),
        ("order stage[s].", ["fwd", "bwd", "dgrad", "wgrad"]),
        ("order by ", ["clock"]),
        ("order by clock for s in 0..S:\n    stage[s].", ["fwd", "bwd"]),
        ("for s in 0..S:\n    as", ["assign"]),
        ("use ", ["pipeline", "tensor_parallel"]),
        ("use pipeline: ", ["gpipe", "one_f_one_b", "zb_h1"]),
        ('use "', ["mine.ssp"]),
        ('use "mine.ssp": ', ["three"]),
        ("let x = st", ["stage"]),
        ("let x = balance(mo", ["model"]),
        ("model[tp = n", ["none", "not"]),
        (":s", [":show", ":simulate", ":save", ":save!"]),
        (":show t", ["tasks"]),
        (":help sp", ["split"]),
    ],
)
def test_offers(planned: Entering, text: str, offered: list[str]) -> None:
    (planned.session.draft.folder / "mine.ssp").write_text("let three = 3\n")
    found = planned.offered(text)
    assert [word for word in found if word in offered] and not set(offered) - set(found), found


@pytest.mark.parametrize(
    "text", ["let ", "param ", "def f(a, ", "# spl", "split by ", "3", "mesh gpus(", "splt model "]
)
def test_nothing_where_nothing_fits(planned: Entering, text: str) -> None:
    assert planned.offered(text) == []


def test_a_line_begins_with_a_statement(enter_: Entering) -> None:
    assert enter_.offered("")[: len(STATEMENTS)] == list(STATEMENTS)


def test_kinds_are_those_of_the_selection(planned: Entering) -> None:
    assert "embedding" in planned.offered("split model.")
    assert "embedding" not in planned.offered('split model["h.*"].')
    assert "tanh" not in planned.offered("split model.addmm.")


def test_what_is_offered_last_is_entered_first(planned: Entering) -> None:
    planned("let apart = 1")
    assert planned.offered("let x = ")[0] == "apart"
    assert planned.offered("assign ")[:2] == ["stage", "model"]


def test_looking_adds_nothing_to_the_plan(planned: Entering) -> None:
    context = planned.session.facts.context
    facts, steps = context.facts.copy(), context.budget.steps
    for text in (
        "order one_f_one_b(stage, 4).",
        'split model["h.*"].',
        "order stage[9].",
        "order balance(model, 2)[0].",
    ):
        planned.offered(text)
    assert (context.facts, context.budget.steps) == (facts, steps)


def test_a_module_that_is_called_twice(planned: Entering) -> None:
    from ssdsl.assist.complete.supply import next_segments

    paths = ["trunk", "trunk#1", "trunk.fc", "trunk#1.fc", "h.0#1.fc", ""]
    assert next_segments(paths, "") == ("trunk", "trunk#1", "fc", "h", "*")
    assert next_segments(paths, "trunk#1.") == ("fc",)
    assert next_segments(paths, "h.") == ("*", "0#1")
