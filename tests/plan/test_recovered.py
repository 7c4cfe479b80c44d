"""A plan with mistakes of syntax: those of names and paths in its other lines are told, too, and none is invented."""

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ssdsl.lang.recover import StatementLines, recovered, statements
from ssdsl.plan.interpret import read_recovered
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source
from tests.captured import graph_of

ROOT = Path(__file__).parents[2]
PLANS = sorted(p for folder in ("examples", "examples/papers", "stdlib") for p in (ROOT / folder).glob("*.ssp"))
CASES = [p if n % 12 == 0 else pytest.param(p, marks=pytest.mark.slow) for n, p in enumerate(PLANS)]
IMAGES = ("swin", "spatial", "tiles", "large_images", "cosmoflow", "resnet")


def found_in(text: str, path: Path, model: ModelIndex) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """The mistakes of syntax, and the others."""
    found = recovered(Source("plan.ssp", text))
    mistakes = read_recovered(found, model, None, path.parent)[1]
    return found.mistakes, tuple(m for m in mistakes if m not in found.mistakes)


def model_of(path: Path) -> ModelIndex:
    return index_model(graph_of("swin" if any(word in path.stem for word in IMAGES) else "gpt:tiny"))


def marred(own: str, draw: Random) -> Iterator[str]:
    """A statement with one sign too many, a word or a bracket less, a word twice."""
    code = own.partition("#")[0].rstrip() if "\n" not in own.strip() else own.rstrip()
    at = draw.choice([m.start() for m in re.finditer(r"(?<=\S) ", code)] or [len(code)])
    yield own[:at] + " @" + own[at:]
    for pattern in (r"\b(by|to|into|in|at)\b|=|->|:", r"[\])]"):
        if found := [*re.finditer(pattern, code)]:
            one = draw.choice(found)
            yield own[: one.start()] + own[one.end() :]
    one = draw.choice([*re.finditer(r"\S+", code)])
    yield own[: one.end()] + " " + one[0] + own[one.end() :]


def broken_plans(text: str, draw: Random) -> Iterator[tuple[StatementLines, str]]:
    for one in statements(text):
        for new in marred(one.text, draw):
            yield one, text[: one.start] + new + text[one.end :]


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_none_is_invented(path: Path) -> None:
    text, model = path.read_text("utf-8"), model_of(path)
    usual = {m.code for m in found_in(text, path, model)[1]}
    for one, made in broken_plans(text, Random(path.stem)):
        syntax, others = found_in(made, path, model)
        assert len(syntax) < 2, (one.text, [str(d.span) for d in syntax])
        assert not syntax or {m.code for m in others} <= usual, (one.text, others)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_planted_mistakes_are_told(path: Path) -> None:
    text, model = path.read_text("utf-8"), model_of(path)
    planted = '\nrecompute nowhere\nsplit model["no.module"] by batch into m = 2\nsplit model by nothing into n = 2\n'
    codes = ["E0201", "E0240", "E0204"]
    for one, made in broken_plans(text, Random(path.stem)):
        syntax, others = found_in(made + planted, path, model)
        told = [m.code for m in others if m.span is not None and m.span.start >= len(made)]
        assert not syntax or told == codes, (one.text, syntax, told)


def test_what_a_left_out_line_would_name_is_known() -> None:
    text = "mesh gpus(dp = @)\nparam M = = 4\nsplit model by batch into dp, m = M\n"
    text += "assign model to gpus\nassign stge to gpus\n"
    syntax, others = found_in(text, ROOT / "plan.ssp", index_model(graph_of("gpt:tiny")))
    assert [m.code for m in syntax] == ["E0112", "E0111"]
    assert [(m.code, m.span.text if m.span else "") for m in others] == [("E0201", "stge")]
