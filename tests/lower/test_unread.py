"""Statements of which a program has nothing get a warning at their place; those that agree with what holds get none."""

from pathlib import Path

import pytest

from ssdsl.compile import compile_source
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.lower.unread import unread
from ssdsl.model.graph import Graph
from ssdsl.plan.errors.place import Idle, Unread
from ssdsl.plan.interpret import interpret_all
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source
from tests.captured import graph_of

TINY = Path(__file__).parent.parent / "models" / "tiny.py"
PIPE = """mesh gpus(pp = {S}, dp = {D})
split model by batch into dp, m = {M}
let first = model["layers.0"]
let last = model - first
assign first to gpus[pp = 0]
assign last to gpus[pp = {S} - 1]
"""
FIRST = "order by clock for m in 0..{M}:\n    first.fwd[m = m] at 2 * m\n"  # of a clock
GATHERED = "split first by ffn into dp\n"
SAYS_NOTHING = [  # a statement, its code, and the characters at which the warning points
    ("order first.fwd[m = 2] -> first.fwd[m = 0]", "E0257", "order"),
    ("order first.bwd[m = 0] -> first.bwd[m = 0]", "E0257", "order"),
    ("order first.gelu.wgrad[m = 0] -> first.bwd[m = 1]", "E0257", "order"),
    (FIRST + "    last.bwd[m = m + 2] at 2 * m + 1", "E0257", "last.bwd"),
    (FIRST + "    first.gelu.wgrad[m = m] at 2 * m + 1", "E0257", "first.gelu"),
    ("order first.fwd[dp = 0, m = 1] -> first.fwd[dp = 1, m = 0]", "E0274", "order"),
    ("recompute first.gathers", "E0271", "recompute"),
    ("split model.optimizer by matrix into pp", "E0271", "split"),
    ("mesh more(a = 2)", "E0275", "mesh"),
    ("param X = 2", "E0273", "X"),
    ("dim wide = model.ffn", "E0273", "wide"),
]
AGREES = [
    "recompute first\nrecompute first",
    "assign first to gpus[pp = 0]",
    "split model by batch into dp, m = {M}",
    "split model by heads into dp where possible",
    "split model.weights by row into dp\nsplit model.grads by row into dp\nsplit model.optimizer by row into dp",
    "split model.optimizer by matrix into dp",
    "prefetch last by 2",
    "prefetch last by 1000",
    "order first.fwd[m = m] -> first.bwd[m = m] for m in 0..{M}",
    "order first.fwd[m = m] -> first.fwd[m = m + 1] for m in 0..{M}",
    FIRST + "    last.bwd[m = m + 1] at 2 * m + 5",
    FIRST,
]


def captured(model: str) -> Graph:
    return graph_of(f"{TINY}:{model}")


def warnings(text: str, model: str = "chain", S: int = 2, D: int = 2, M: int = 2) -> tuple[Diagnostic, ...]:
    settings = {"{S}": S, "{D}": D, "{M}": M}
    for name, number in settings.items():
        text = text.replace(name, str(number))
    return compile_source(Source("plan.ssp", text), captured(model), {}, None).warnings


@pytest.mark.parametrize(("said", "code", "at"), SAYS_NOTHING)
def test_what_says_nothing(said: str, code: str, at: str) -> None:
    (found,) = warnings(PIPE + said + "\n")
    assert found.code == code
    assert found.span is not None
    assert found.span.source.text[found.span.start :].startswith(at)


@pytest.mark.parametrize(("S", "D", "M"), [(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("said", AGREES)
def test_what_agrees_with_what_holds(said: str, S: int, D: int, M: int) -> None:
    """Also where an index has one part."""
    assert warnings(PIPE + said + "\n", S=S, D=D, M=M) == ()


@pytest.mark.parametrize(
    ("said", "idle"),
    [
        ("recompute first", Idle.KEPT),
        ("prefetch first by 4", Idle.RECEIVED),
        ("prefetch last.linear by 4\nprefetch last.gelu by 3", Idle.LESS),
    ],
)
def test_why(said: str, idle: Idle) -> None:
    """Of a model whose first layer is frozen: it has no backward, and receives no gradient."""
    found = [d for d in warnings(PIPE + said + "\n", "chain_frozen") if isinstance(d, Unread)]
    assert [d.idle for d in found] == [idle]


@pytest.mark.parametrize("said", ["cross_entropy_loss by vocab", "ne by seq"])
def test_parts_in_time_of_what_runs_once(said: str) -> None:
    """A loss along its classes, and what reads inputs alone."""
    text = f"mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.{said} into q = 2\nassign model to gpus\n"
    graph = graph_of("gpt:tiny,layers=1")
    (found,) = compile_source(Source("plan.ssp", text), graph, {}, None).warnings
    assert isinstance(found, Unread)
    assert (found.statement, found.idle) == ("split", Idle.WHOLE)


def test_a_call_is_asked_as_a_whole() -> None:
    """Of a schedule of the library some rows name no task at the ends; the call says something."""
    use = "use pipeline: gpipe\n"
    assert warnings(use + PIPE + "gpipe([first, last], {M})\n") == ()
    assert warnings(use + PIPE + "gpipe([first, last], {M})\n", M=1) == ()


@pytest.mark.parametrize(
    ("said", "code"), [("recompute first.gathers", "E0271"), ("order first.fwd[m = 2] -> first.fwd[m = 0]", "E0257")]
)
def test_a_text_that_is_read_again_is_warned_of_again(said: str, code: str) -> None:
    """A parsed text is kept by its value: the statements of the second reading point into the first one's source."""
    text = PIPE.replace("{S}", "2").replace("{D}", "2").replace("{M}", "2") + said
    for _ in range(2):
        source = Source("again.ssp", "".join(list(text)))
        plan, found = interpret_all(parse(source), captured("chain"), {}, None)
        assert [d.code for d in (*found, *unread(plan, lower(plan), source))] == [code]
