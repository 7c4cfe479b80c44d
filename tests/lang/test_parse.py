"""Texts that do not parse are answered with the place, the reason and the change to make; texts that do, with nodes."""

import re
from time import process_time

import pytest

from ssdsl.lang import nodes
from ssdsl.lang.assets import library_files
from ssdsl.lang.parse import parse, parse_definitions
from ssdsl.lang.read import read_source
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source


def mistake(text: str) -> Diagnostic:
    start = process_time()
    with pytest.raises(PlanError) as caught:
        parse(Source("plan.ssp", text))
    assert process_time() - start < 2  # alone it takes well under one second; the machine may be busy
    return caught.value.diagnostics[0]


def test_split() -> None:
    (s,) = parse(Source("plan.ssp", "split model by seq.0 into dp, m = [3, 5]\n")).statements
    assert isinstance(s, nodes.SplitStatement)
    assert s.dim.text == "seq.0"
    assert [cut.name.text for cut in s.cuts] == ["dp", "m"]
    assert s.cuts[0].count is None and isinstance(s.cuts[1].count, nodes.ListOf)


def test_suffix_is_a_loop() -> None:
    (s,) = parse(Source("plan.ssp", "assign stage[s] to gpus[pp = s]  for s in 0..S")).statements
    assert isinstance(s, nodes.ForStatement) and s.is_suffix
    assert isinstance(s.body[0], nodes.AssignStatement)


def test_a_library_is_parsed_as_far_as_it_is_needed() -> None:
    for path in library_files():
        source = read_source(path, path.name)
        whole = {s.name.text: s for s in parse(source).statements if isinstance(s, nodes.DefStatement)}
        for name in whole:
            found = parse_definitions(source, frozenset([name])).statements
            functions = {s.name.text: s for s in found if isinstance(s, nodes.DefStatement)}
            assert name in functions and functions.items() <= whole.items()
            assert all(f.span == whole[called].span for called, f in functions.items())
            words = {w for f in functions.values() for w in re.findall(r"\w+", source.text[f.span.start : f.span.end])}
            assert words & whole.keys() <= functions.keys()


def test_what_is_not_needed_is_not_parsed() -> None:
    source = Source(
        "lib.ssp", "let a = 1\ndef f(x):\n    assign x to a\n\n    # behind\n    ]\ndef g(x):\n  assign x to a\n"
    )
    a, g = parse_definitions(source, frozenset("g")).statements
    assert isinstance(a, nodes.LetStatement) and isinstance(g, nodes.DefStatement)
    with pytest.raises(PlanError):
        parse_definitions(source, frozenset("f"))


def test_clock() -> None:
    (s,) = parse(Source("plan.ssp", "order by clock for m in 0..4:\n    a[m = m] at 2 * m\n    b at m\n")).statements
    assert isinstance(s, nodes.ClockStatement) and len(s.rows) == 2


def test_keyword_after_a_dot_is_a_name() -> None:
    (s,) = parse(Source("plan.ssp", "split x.in by fc.to into tp = 2")).statements
    assert isinstance(s, nodes.SplitStatement) and s.dim.text == "fc.to"


def test_spans() -> None:
    text = "# plan\nfor s in 0..2:\n    let x = f(\n        s)  # two\n\nlet y = 1\n"
    loop, last = parse(Source("plan.ssp", text)).statements
    assert text[loop.span.start : loop.span.end] == "for s in 0..2:\n    let x = f(\n        s)"
    assert text[last.span.start : last.span.end] == "let y = 1"


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n  \n", "  # end", "\n    # end\n", "\n\t\n"])
def test_any_end_of_text(end: str) -> None:
    assert len(parse(Source("plan.ssp", "if a:\n    let x = 1" + end)).statements) == 1


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "   ", "\r\n\r\n"])
def test_empty(text: str) -> None:
    assert parse(Source("plan.ssp", text)).statements == ()


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("splt model by batch into dp", "E0110", "did you mean `split`?"),
        ("asign model to gpus", "E0110", "did you mean `assign`?"),
        ("while x > 3:\n    let y = 1", "E0110", "every plan ends"),
        ("split model by batch int dp", "E0111", "did you mean `into`?"),
        ("split model batch into dp", "E0111", "expected `by`"),
        ("split model by a.0_inner1.b into dp", "E0111", '`by "a.0_inner1.b"`'),
        ("split model by 3d into dp", "E0111", '`by "3d"`'),
        ("split model by a-b into dp", "E0111", '`by "a-b"`'),
        ("split model.h.*.mlp by ffn into dp", "E0111", '`model["h.*.mlp"]`'),
        ("order model.h.0.fwd -> model.h.1.fwd", "E0111", '`model["h.0"].fwd`'),
        ("assign stage.0 to gpus", "E0111", "`stage[0]`"),
        ("assign model. * to gpus", "E0111", "expected a name, found `*`"),
        ("assign stage[0].* to gpus", "E0111", "expected a name, found `*`"),
        ("assign model too gpus", "E0111", "did you mean `to`?"),
        ("order a > b", "E0111", "expected `->`, found the end of the line"),
        ("mesh gpus(dp = )", "E0111", "expected a value, found `)`"),
        ("for s in 0..S\n    let x = 1", "E0111", "expected `:`, found the end of the line"),
        ("let x = 5 6", "E0111", "expected the end of the line, found `6`"),
        ("let x = a < b < c", "E0111", "found `<`"),
        ("let x = 'a'", "E0112", '"..."'),
        ("let x = \x00", "E0112", "U+0000"),
        ("let x = (3,\nlet y = 4", "E0111", "expected `)`"),
        ("let x = f(3,\nlet y = 4", "E0114", "close it with `)`"),
        ("let x = 3)", "E0115", "no bracket is open"),
        ("\tlet x = 3", "E0116", "four spaces"),
        ("  let x = 3", "E0118", "indented"),
        ("if a: let x = 3", "E0119", "below the `:`"),
        ("for s in 0..3:", "E0119", "below the `:`"),
        ("if a:\n    # nothing\nlet x = 1", "E0119", "below the `:`"),
        ("def f(by):\n    let x = 1", "E0121", "`by` is a word of the language"),
    ],
)
def test_mistake(text: str, code: str, said: str) -> None:
    found = mistake(text)
    assert found.code == code
    assert said in render(found)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10**6,
        "[" * 10**6,
        "let x = " + "(" * 10**6 + ")" * 10**6,
        "let x = " + "f(" * 10**5,
        "let x = 1" + " + 1" * 10**5,
        "let x = " + "-" * 10**6 + "1",
        "let x = " + "not " * 10**5 + "y",
        "let x = a" + ".b" * 10**5,
        "let x = a" + "[0]" * 10**5,
        "let x = " + "a if b else " * 10**5 + "c",
        "let x = " + "9" * 10**6,
        "".join(" " * i + "if a:\n" for i in range(1000)),
        '"' * 10**6,
        "\t" * 10**6 + "let x = 1",
        "\n" * 10**6 + "splt model",
        "#" * 10**6 + "\nsplt model by x",
        ")" * 10**6,
        "a " * 10**5,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_is_answered_in_a_second(text: str) -> None:
    render(mistake(text))


def test_many_statements_are_not_nested() -> None:
    text = "let x = f(" + ", ".join(["1 + 2"] * 1000) + ")\n"
    assert len(parse(Source("plan.ssp", text * 2)).statements) == 2
