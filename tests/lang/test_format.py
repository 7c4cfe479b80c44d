"""The formatter says what the script says: `parse(format(x)) == x`, with all comments, and again the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.lang import nodes
from ssdsl.lang.assets import assets_folder, library_files
from ssdsl.lang.format import format_script
from ssdsl.lang.formatter.comments import comments
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.text.source import Source, Span

NOWHERE = Span(Source("none", ""), 0, 0)


def made(node: type[Any], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*parts).map(lambda values: node(*values, span=NOWHERE))


def tuples(of: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[Any]:
    return st.lists(of, min_size=least, max_size=3).map(tuple)


ids = st.sampled_from(["a", "S", "m_1", "model", "clock", "_x", "fwd", "true"])
words = made(nodes.Word, ids)
texts = st.sampled_from(["", "h.*.mlp", "größer", "a # b", "for", "it's (", "\t", "seq.0"])
atoms = st.one_of(
    made(nodes.NameExpression, ids), made(nodes.Number, st.sampled_from(["0", "12", "0.5", "007"])),
    made(nodes.Text, texts),
)  # fmt: skip


def keyed(e: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return made(nodes.Keyed, words, e)


def bindings(e: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return tuples(made(nodes.Binding, words, e))


def larger(e: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    signs = ["or", "and", "==", "!=", "<=", ">=", "<", ">", "..", "+", "|", "-", "*", "//", "%", "&"]
    return st.one_of(
        made(nodes.Binary, st.sampled_from(signs), e, e),
        made(nodes.Unary, st.sampled_from(["-", "not"]), e),
        made(nodes.Conditional, e, e, e),
        made(nodes.ListOf, tuples(e, 0)),
        made(nodes.Comprehension, e, bindings(e)),
        made(nodes.Attribute, e, words),
        made(nodes.Call, e, tuples(e | keyed(e), 0)),
        made(nodes.Pick, e, tuples(e | keyed(e))),
    )


exprs = st.recursive(atoms, larger, max_leaves=8)
named = st.recursive(
    made(nodes.NameExpression, ids), lambda e: made(nodes.Attribute, e, words) | made(nodes.Pick, e, tuples(exprs))
)
helps = st.none() | texts
dims = made(nodes.Word, st.sampled_from(["batch", "seq.0", "fc.in", "h.0.out", "in", "by.x", "0x", "a-b", ""]))
verbs = st.one_of(
    made(nodes.SplitStatement, exprs, dims, tuples(made(nodes.Into, words, st.none() | exprs))),
    made(nodes.AssignStatement, exprs, exprs),
    made(nodes.OrderStatement, tuples(exprs, 2)),
    made(nodes.RecomputeStatement, exprs),
    made(nodes.BucketStatement, named, exprs),
    made(nodes.RequireStatement, exprs, helps),
    made(nodes.Do, made(nodes.Call, exprs, tuples(exprs, 0))),
)
simple = st.one_of(
    verbs,
    made(nodes.ParamStatement, words, exprs, st.none() | exprs, helps),
    made(nodes.MeshStatement, words, tuples(keyed(exprs))),
    made(nodes.LetStatement, words, st.none() | tuples(words, 0), exprs),
    made(nodes.UseStatement, words | made(nodes.Text, texts), tuples(words)),
    made(nodes.DimStatement, words, exprs),
    made(nodes.ReturnStatement, exprs),
    made(nodes.ForStatement, bindings(exprs), tuples(verbs).map(lambda body: body[:1]), st.just(True)),
    made(nodes.ClockStatement, words, bindings(exprs) | st.just(()), tuples(made(nodes.At, exprs, exprs))),
)


def blocks(s: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        made(nodes.ForStatement, bindings(exprs), tuples(s), st.just(False)),
        made(nodes.IfStatement, tuples(made(nodes.Branch, exprs, tuples(s))), tuples(s, 0)),
        made(nodes.DefStatement, words, tuples(words, 0), tuples(s)),
    )


scripts = made(nodes.Script, tuples(st.recursive(simple, blocks, max_leaves=4), 0))


@settings(max_examples=20, deadline=None)
@given(scripts)
def test_parse_of_format_is_the_script(script: nodes.Script) -> None:
    check_formatted(script)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(scripts)
def test_parse_of_format_is_each_of_many_scripts(script: nodes.Script) -> None:
    check_formatted(script)


def check_formatted(script: nodes.Script) -> None:
    text = format_script(script)
    again = parse(Source("plan.ssp", text))
    assert again == script
    assert format_script(again) == text
    assert format_script(again, again.span.source) == text


PLANS = [*library_files(), *sorted(assets_folder("examples").glob("*.ssp"))]


def test_our_plans_are_formatted() -> None:
    sources = map(read_source, PLANS)
    assert [s.name for s in sources if format_script(parse(s), s) != s.text] == []


UNTIDY = """\
#first


param   N=2   "help"   #  trailing
let  x=f( 1,
   # inside
   2 )  # behind
for s in 0 .. N-1 :   # head
      # own line
      let y=(s+1)*2
      # after

if x: # then
  f(x)
else : # other
  # only
  f(y)
def g( ) :
    if a:
        return 1
        # end of if
    # end of def
# end
"""


def test_comments_are_kept(golden: Callable[[Path, str], None]) -> None:
    source = Source("untidy.ssp", UNTIDY)
    text = format_script(parse(source), source)
    again = Source("tidy.ssp", text)
    assert parse(again) == parse(source)
    assert sorted(c.text for c in comments(again)) == sorted(c.text for c in comments(source))
    assert format_script(parse(again), again) == text
    golden(Path(__file__).parent / "tidy.ssp", text)
