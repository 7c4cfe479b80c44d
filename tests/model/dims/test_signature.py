"""Signatures: what a row of the rule table says of each operand and axis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.model.dims.signature import Letter, Misfit, Pattern, parse_signature
from ssdsl.model.ops.rows import ROWS

names = st.from_regex(r"[a-z][a-z_0-9]{0,6}", fullmatch=True)
letters = st.builds(Letter, names, st.booleans(), st.booleans(), st.none() | st.integers(1, 64))
axes = st.lists(letters, min_size=0, max_size=3).map(tuple)
patterns = st.builds(Pattern, st.lists(axes, max_size=4).map(tuple), st.booleans(), st.booleans())


def letter_text(letter: Letter) -> str:
    size = "" if letter.size is None else f":{letter.size}"
    return f"{letter.name}{'!' * letter.fixed}{'*' * letter.combined}{size}"


def pattern_text(pattern: Pattern) -> str:
    words = []
    for axis in pattern.axes:
        inside = " ".join(map(letter_text, axis or ()))
        words.append("..." if axis is None else "1" if not axis else inside if len(axis) == 1 else f"({inside})")
    return (" ".join(words) or "_") + "+" * pattern.once + "?" * pattern.optional


@given(st.lists(patterns, min_size=1, max_size=4), st.lists(patterns, min_size=1, max_size=2))
def test_a_signature_reads_back_as_it_was_written(inputs: list[Pattern], outputs: list[Pattern]) -> None:
    found = parse_signature(f"{', '.join(map(pattern_text, inputs))} -> {', '.join(map(pattern_text, outputs))}")
    assert (list(found.inputs), list(found.outputs)) == (inputs, outputs)


@pytest.mark.parametrize("row", [op.dims for op in ROWS.values() if isinstance(op.dims, str)])
def test_rows_of_the_table_are_signatures(row: str) -> None:
    found = parse_signature(row)
    known = {letter.name for p in found.inputs for axis in p.axes for letter in axis or ()}
    new = [letter for p in found.outputs for axis in p.axes for letter in axis or () if letter.name not in known]
    assert all(letter.fixed for letter in new), "a dimension that no input has cannot be split"


def test_linear() -> None:
    x, weight, bias = parse_signature("... in, out in, out+? -> ... out").inputs
    assert [[a.name for a in axis] for axis in x.fit(3)] == [[".1"], [".0"], ["in"]]
    assert bias.once and bias.optional and not weight.once
    assert [[a.name for a in axis] for axis in x.fit(1)] == [["in"]]


def test_axes_of_the_dots_are_numbered_from_the_right() -> None:
    pattern = parse_signature("b ... c -> b").inputs[0]
    assert [[a.name for a in axis] for axis in pattern.fit(5)] == [["b"], [".2"], [".1"], [".0"], ["c"]]


@pytest.mark.parametrize(("text", "rank"), [("a b", 3), ("a ... b", 1)])
def test_a_tensor_of_another_rank_does_not_fit(text: str, rank: int) -> None:
    with pytest.raises(Misfit):
        parse_signature(f"{text} -> _").inputs[0].fit(rank)
