"""Every help works when it is followed: the plan of a golden, changed as its helps say, is a plan without mistakes.

A plan is followed as a user would: check it, make the change of the first mistake, check again. Where a diagnostic has
edits, the first of these is the change.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import interpret_all
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.edits import edited
from ssdsl.text.source import Source

FOLDER = Path(__file__).parent.parent / "errors"
MOST_CHANGES = 12
GENERAL = {  # helps that name no one change, but how to write it otherwise
    "E0120": "give the inner parts names",
    "E0123": "no count has so many digits",
    "E0213": "keep numbers below",
    "E0230": "use `for s in 0..S:`",
    "E0231": "shorten the loops",
    "E0232": "reduce the depth",
    "E0235": "put the file beside the plan",
    "E0237": "move what both need to a third file",
}


@dataclass(frozen=True)
class Help:
    """One line of a help, of a mistake in a plan's text: `quoted` are the words that it gives between backquotes."""

    text: str
    span: tuple[int, int]
    said: str

    @property
    def quoted(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.said)

    @property
    def line(self) -> str:
        start, end = self._line()
        return self.text[start:end]

    def with_line(self, line: str) -> str:
        start, end = self._line()
        return self.text[:start] + line + self.text[end:]

    def with_span(self, words: str) -> str:
        return self.text[: self.span[0]] + words + self.text[self.span[1] :]

    def _line(self) -> tuple[int, int]:
        start = self.text.rfind("\n", 0, self.span[0]) + 1
        return start, (self.text + "\n").index("\n", self.span[0])


Follow = Callable[[Help], str]


def span(h: Help) -> str:
    """The first quoted words in place of the marked ones."""
    return h.with_span(h.quoted[0].removeprefix("into "))


def line(h: Help) -> str:
    """The quoted lines in place of the marked one."""
    return h.with_line("\n".join(h.quoted))


def delete(h: Help) -> str:
    return h.with_line("")


def append(h: Help) -> str:
    """The quoted lines at the end."""
    return "\n".join([h.text.rstrip("\n"), *h.quoted, ""])


def behind(selection: str) -> Follow:
    """The quoted words behind a selection."""
    return lambda h: h.text.replace(selection, f"{selection} {h.quoted[0]}", 1)


def put(words: str) -> Follow:
    return lambda h: h.with_span(words)


def change(pattern: str, words: str) -> Follow:
    """In the marked line; `words` may have `{0}`, what is quoted first."""
    return lambda h: h.with_line(re.sub(pattern, lambda _: words.format(*h.quoted), h.line, count=1))


def settings(h: Help) -> str:
    """The first of the values that the help names: `T = 6, 4, 3 or 2`."""
    found = re.search(r"(\w+) = (\d+)", h.said)
    assert found
    return re.sub(r"# set \w+=\d+", f"# set {found[1]}={found[2]}", h.text)


def number(h: Help) -> str:
    """The last number of the help in place of the last one of the marked words."""
    start, end = h.span
    return h.with_span(re.sub(r"\d+(?=\D*$)", re.findall(r"\d+", h.said)[-1], h.text[start:end]))


def axis(h: Help) -> str:
    """The mesh with an axis more, in place of the one of its name or above."""
    mesh = h.quoted[0]
    name = mesh.partition("(")[0]
    if name in h.text:
        return re.sub(rf"{name}\(.*\)", mesh, h.text)
    return f"{mesh}\n{h.text}"


def out_of_brackets(h: Help) -> str:
    return re.sub(rf"{h.quoted[0]} = \d+, ", "", h.text)


def loop_to(h: Help) -> str:
    """The loop over `m`, ended at the number of parts."""
    return re.sub(r"(m in 0\.\.)\d+", rf"\g<1>{h.said.split()[1]}", h.text)


def devices(h: Help) -> str:
    """What `assign model[m = 0] to ...` was meant for: the axis `m`, and one statement for all parts."""
    return axis(Help(h.with_line("assign model to gpus"), (0, 0), f"`{h.quoted[1]}`"))


def by_words(h: Help) -> str:
    """What most helps say alike."""
    for words, follow in (("did you mean", span), ("remove", delete), ("leave this `split` out", delete)):
        if words in h.said:
            return follow(h)
    raise AssertionError(f"no way to follow: {h.said}")


WAYS: dict[str, tuple[Follow, ...]] = {  # one for each line of a help
    "E0111": (line,),
    "E0117": (change("^ *", "    "),),
    "E0118": (change("^ *", ""),),
    "E0119": (change("^", "    "),),
    "E0121": (span,),
    "E0124": (lambda h: h.with_line(f"{h.quoted[3]} {h.line}"),),
    "E0202": (put("other"),),
    "E0203": (settings,),
    "E0205": (lambda h: line(h) if h.quoted[0].startswith("split") else span(h), line),
    "E0207": (lambda h: axis(h) if "declare" in h.said else span(h), span),
    "E0210": (span,),
    "E0211": (put("1"),),
    "E0212": (change("$", " if S > 0 else 0"),),
    "E0214": (change(r"stage\.fwd", "{0}"),),
    "E0215": (put("1"),),
    "E0385": (put("1"),),
    "E0388": (change(r" = \[.*\]", ""),),
    "E0130": (change("--steps 3", ""),),
    "E0127": (lambda h: h.text.replace("assign model", f'{h.quoted[0]}\n    recompute model["h.*"]\nassign model'),),
    "E0128": (lambda h: h.with_line(f"{h.quoted[0]}\n    split model by heads into m = 2\nor:"),),
    "E0245": (lambda h: re.sub(r"either:4=\d", f"either:4={h.said.split()[-1]}", h.text),),
    "E0289": (put("25"),),
    "E0220": (change("= .*", "= model.seq"),),
    "E0225": (lambda h: h.text.replace("# set TP", f"# set {h.quoted[0]}"),),
    "E0226": (put("2"),),
    "E0227": (lambda h: "param T = 2\n",),
    "E0228": (lambda h: f"# set M=4\n{h.text}",),
    "E0229": (lambda h: h.with_line(f"let M = 2\nsplit model by batch into m = M\n{h.quoted[0]}"),),
    "E0242": (change("^", "split model by seq into {0} = 2\n"),),
    "E0243": (change("&", "|"),),
    "E0246": (change(r"\[m = 1\]", ""),),
    "E0247": (change("= .*", '= (model["h.0"] | model["h.1"]).fwd'),),
    "E0248": (number,),
    "E0250": (append,),
    "E0251": (number,),
    "E0253": (lambda h: h.text.replace("assign model to", 'assign (model - model["h.3"]) to'),),
    "E0255": (lambda h: h.with_span(h.quoted[0].partition("= ")[2].replace("s", "2")),),
    "E0256": (change(r"\[pp = 0\]", ""),),
    "E0258": (change("order by priority", "order by clock"),),
    "E0264": (change("3]]", "2]]"),),
    "E0265": (put("2"),),
    "E0281": (behind("model - first"),),
    "E0297": (lambda h: h.text.replace("into dp, m = 2", "into m = 2, dp"),),
    "E0299": (change(r"m = 2\]", "m = 1]"),),
    "E0282": (number,),
    "E0284": (change(r", before = .*]", ""),),
    "E0286": (change(r", each = .*]", ""),),
    "E0384": (change(r", each = .*]", ""),),
    "E0288": (change("0\\]", "1]"),),
    "E0381": (settings,),
    "E0276": (loop_to,),
    "E0277": (loop_to,),
}
OF_TYPES = {"E0223", "E0224"}  # followed in test_precision.py, for a model that torch runs
OF_LINES = {"E0216", "E0249", "E0291", "E0293"}  # likewise in test_compress.py
CODES = sorted({path.stem for path in FOLDER.glob("E*.ssp")} - GENERAL.keys() - OF_TYPES - OF_LINES)
WHOLE = {"E0250", "E0252", "E0380"}  # of a plan that lacks something, looked at once nothing else is wrong
WITHOUT = {  # helps that quote what to write, and leave something of it open; of the command line
    "E0127": "another block",
    "E0130": "NAME",
    "E0216": "topk(K)",
    "E0220": "dim name = OPERATORS.dimension",
    "E0225": "--set",
    "E0229": "arguments by their names",
    "E0249": "a number from 1",
    "E0258": "rows",
}
QUOTES = re.compile(r"\b(?:write|did you mean|close it with|add a line) `(?!into \w+ alone)")
CASES = [(code, way) for code in CODES for way in range(len(WAYS.get(code, (by_words,))))]


def mistakes(text: str, graph: Graph, code: str) -> list[Diagnostic]:
    """The mistakes of a plan, and its warnings of this code; its first line may set parameters: `# set T=8`."""
    first = text.split("\n")[0]
    sets = dict(pair.split("=") for pair in first.removeprefix("# set ").split()) if first.startswith("# set ") else {}
    try:
        script = parse(Source("plan.ssp", text))
        found = interpret_all(script, graph, {k: int(v) for k, v in sets.items()}, FOLDER)[1]
    except PlanError as error:
        return list(error.diagnostics)
    return [d for d in found if d.code == code]


def followed(text: str, d: Diagnostic, way: int) -> str:
    """The plan with the change of a line of a help."""
    said = d.text(d.help).split("\n")
    if not way and (edits := d.edits()):
        return edited(Source("plan.ssp", text), edits[:1])
    place = (0, 0) if d.span is None else (d.span.start, d.span.end)
    ways = WAYS.get(d.code, (by_words,))
    way = min(way, len(said) - 1, len(ways) - 1)
    return ways[way](Help(text, place, said[way]))


@pytest.mark.parametrize(("code", "way"), CASES)
def test_a_plan_that_follows_its_helps_is_right(code: str, way: int, graph: Graph) -> None:
    text, met = (FOLDER / f"{code}.ssp").read_text("utf-8"), set()
    for _ in range(MOST_CHANGES):
        found = mistakes(text, graph, code)
        if not found:
            break
        met.add(found[0].code)
        then = followed(text, found[0], way if found[0].code == code else 0)
        assert then != text, f"nothing to follow in: {found[0].text(found[0].help)}"
        text = then
    assert not mistakes(text, graph, code), text
    assert code in met


def test_helps_that_name_no_change_are_few() -> None:
    assert len(GENERAL) < 10 and not WAYS.keys() & GENERAL.keys()


@pytest.mark.parametrize("code", sorted({path.stem for path in FOLDER.glob("E*.ssp")} - OF_TYPES - OF_LINES))
def test_an_edit_removes_its_diagnostic_and_brings_no_other(code: str, graph: Graph) -> None:
    text = (FOLDER / f"{code}.ssp").read_text("utf-8")
    found = mistakes(text, graph, code)
    for d in found:
        edits = d.edits()
        assert edits or d.code in WITHOUT or not QUOTES.search(d.text(d.help)), d.text(d.help)
        if edits:
            made = edited(Source("plan.ssp", text), edits[:1])
            left = mistakes(made, graph, code)
            assert not [one for one in left if one.code == d.code and one.span == d.span], made
            assert {one.code for one in left} <= {one.code for one in found} | WHOLE, made
