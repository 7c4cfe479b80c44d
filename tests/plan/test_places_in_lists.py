"""A mistake in a list is shown at the innermost expression that is wrong."""

from typing import Any

import pytest

from ssdsl.text.diagnostic import PlanError

Plans = Any
BEFORE = """\
mesh gpus(dp = 2)
let layers = each("h.*")
let pair = [layers[0], layers[1]]
"""


@pytest.mark.parametrize(
    ("line", "shown", "said"),
    [
        ("recompute [layers[0], [layers[1], layers[2]]]", "[layers[1], layers[2]]", "a selection of operators"),
        ("recompute [layers[0]] + [3]", "3", "found a number"),
        ("recompute pair + [3]", "3", "found a number"),
        ("recompute [3] + pair", "3", "found a number"),
        ("recompute [s for s in 0..2]", "s", "found a number"),
        ("recompute [layers[0], layers[1].fwd]", "layers[1].fwd", "takes whole operators"),
        ("split model by batch into m = [4, model]", "model", "expected a whole number, found a selection"),
        ("split model by batch into m = [4, 2 - 2]", "2 - 2", "a part of size 0"),
        ("split model by batch into m = []", "[]", "found an empty list"),
        ("split model by batch into m = pair", "pair", "a number of parts or a list of sizes, found a list"),
        ("split model by batch into dp parts [[0, 1], 2]", "2", "the chunks of a part, found a number"),
        ("split model by batch into dp parts [[0, model], [1]]", "model", "expected a whole number"),
        ("split model by batch into dp parts [[0, 1], []]", "[]", "part 1 has none"),
        ("split model by batch into dp parts [[0, 1], [1, 2]]", "[1, 2]", "chunk 1 appears twice"),
        ("split model by batch into dp parts [[0, -1], [1]]", "[0, -1]", "there is no chunk -1"),
        ("split model by batch into dp parts [[0, 1], [3]]", "[[0, 1], [3]]", "chunk 2 is in no part"),
        ("param T = 2 in [1, 0.5]", "0.5", "expected a whole number, found a fraction"),
        ("let x = widths(8, 2, [1, true])", "true", "found a truth value"),
        ('let x = cut(model, 2, before = ["h.1", 3])', "3", "expected a path"),
        ('let x = min(2, "a")', '"a"', "found a string"),
        ('let x = min([2, "a"])', '"a"', "found a string"),
        ("let x = min([])", "[]", "found an empty list"),
        ("let x = min(model)", "model", "found a selection"),
        ("let x = 0..0.5", "0.5", "around `..`"),
    ],
)
def test_the_innermost_wrong_expression_is_shown(plan: Plans, line: str, shown: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(BEFORE + line)
    (found,) = caught.value.diagnostics
    assert found.span is not None and found.span.source.text[found.span.start : found.span.end] == shown
    assert said in found.text(found.title)
