"""What stands in the wrong place is answered with what to write there, and common slips with what was meant."""

from typing import Any

import pytest

from ssdsl.text.diagnostic import PlanError

Plans = Any
BEFORE = """\
mesh gpus(dp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
def f(a):
    return a
"""


def helps(plan: Plans, text: str, **overrides: int) -> list[str]:
    with pytest.raises(PlanError) as caught:
        plan(BEFORE + text, **overrides)
    return [d.text(d.help) for d in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("assign stage to gpus", "choose one of the list's selections: `stage[0]`"),
        ('assign "h.0" to gpus', 'write `model["h.0"]`'),
        ("assign f to gpus", "call it: `f(a)`"),
        ("assign model to 3", "name a mesh, `gpus`"),
        ("let x = stage.fwd", "`stage[0].fwd`"),
        ("let x = gpus.fwd", "write a selection in front of the dot: `model.fwd`"),
        ('let x = "h." + 0', 'paths are not computed: `each("h.*")`'),
        ("let x = model + model", "selections are combined with `|`, `&` and `-`"),
        ("let x = 1 | 2", "`|` and `&` combine selections"),
        ("let x = 0..0.5", "divide whole numbers by `//`"),
        ("let x = [1] + 1", "`list + [item]`"),
        ("let x = len(3)", "write `[a, b]` or a range"),
        ("let x = 3(1)", "functions are defined by `def`"),
        ("let x = f(b = 1)", "write `f(a)`"),
        ("let x = len()", "give a list"),
        ("let x = stage[0.5]", "by `//`"),
        ("let x = model[3]", "name the index: `[m = 3]`"),
        ("let x = model[3]", 'a path in quotation marks: `["h.3"]`'),
        ('let x = model[m = "a"]', "`[m = 0]` is part 0"),
        ("let x = 3[0]", "`model[...]`"),
        ("let x = gpus[dp = 0.5]", "by `//`"),
        ("let x = gpus[qqq = 0]", "choose one of its axes: `gpus[dp = 0]`"),
        ("for s in 4:\n    let x = s", "write a range: `0..4`"),
        ("if 3:\n    let x = 1", "compare it"),
        ('let x = model["h.0"] or model["h.1"]', "selections are combined with `|`, `&` and `-`"),
        ("let x = model.h", 'a path in brackets: `model["h"]`'),
        ("let x = stage[0].mlp", 'a path in brackets: `stage[0]["mlp"]`'),
        ("require 1 <= 2 <= 3", "`a <= b and b <= c`"),
        ("if 1 == 1 && true:\n    let x = 1", "combined by `and` and `or`"),
        ("if true:\n    let x = 1\nelse if true:\n    let x = 2", "`elif`"),
        ("mesh all(dp = 2) for s in 0..2\nassign model to all", "choose one of the list's meshes: `gpus[0]`"),
        ("assign model to hosts", "`mesh hosts(dp = 2)`"),
        (
            "split model by seq into dp parts [[0, 3], [1, 2]]\nsplit model.attention by seq.keys into dp",
            "give both the same chunks",
        ),
        ("let x = -true", "write a number such as `4`"),
        ("let x = each(3)", "in quotation marks"),
        ("let x = min(model)", "`min(S, M)`"),
        ("split model by ffn into k = 0.5", "write `into m = 4`"),
        ("split model.weights by row into dp = 2", "write `into dp`"),
        ("order by clock:\n    model.fwd at model", "behind `at`"),
        ("let x = range(2)", "`range(2)` is `0..2`"),
        ("one_f_one_b(stage, 4)", "write `use pipeline: one_f_one_b` above this line"),
        ("let x = qqqqqq", "bind it above this line"),
        ("param S = two", "write a number such as `2`, or a `param` that stands above"),
        ("param S = 2\nparam K = SS", "did you mean `S`?"),
        ("param S = two\nparam K = S", "write a number"),
        ("let a == 2", "a name is given its value by one `=`"),
        ("split model by batch into k == 2", "a name is given its value by one `=`"),
        ("recompute stage[0], stage[1]", "`recompute [a, b]`"),
        ("assign stage[0], stage[1] to gpus", "`assign a | b to gpus`"),
        ("split stage[0], stage[1] by batch into dp", "`split a | b by batch into dp`"),
        ("split model by batch, seq into dp", "a statement cuts one dimension"),
        ("param T = 2 in 0..100000000000", "shorten the loops"),
        ("split model by batch into k = 0..100000000000", "shorten the loops"),
        ("order model[mm = 0] -> model[m = 1]", "did you mean `m`?"),
        ("// a comment", "comments begin with `#`"),
        ("stage = 3", "write `let stage = ...`"),
    ],
)
def test_help(plan: Plans, text: str, said: str) -> None:
    (found,) = helps(plan, text)
    assert said in found


def test_a_dimension_that_dim_does_not_find_is_one_mistake(plan: Plans) -> None:
    (found,) = helps(plan, "dim inner = model.xyz\nsplit model by inner into dp")
    assert "lists what there is" in found and "where possible" not in found  # which `dim` does not take


def test_a_parameter_that_the_plan_does_not_have(plan: Plans) -> None:
    assert "add `param Q = ...` to the plan" in helps(plan, "", Q=3)[0]
    assert helps(plan, "param T = 2\nparam TP = 2", Q=3) == ["set one that it has, such as `--set T=3`"]


def test_the_cut_that_the_user_has_set_is_named(plan: Plans) -> None:
    text = "param D = 1\nparam M = 4\nmesh more(ep = D)\nsplit model by seq into ep, k = M"
    (found,) = helps(plan, text, D=8)
    assert found == "choose a number whose product with k = 4 divides 16: D = 4, 2 or 1"
    (found,) = helps(plan, text, D=3)
    assert found == "choose a divisor of 16: D = 16, 8, 4 or 2"
