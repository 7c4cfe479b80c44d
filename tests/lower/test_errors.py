"""The diagnostics of lowering, each with a plan and a model that it meets."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.compile import compile_plan, compile_source
from ssdsl.lower import errors
from ssdsl.model.graph import Graph
from ssdsl.text.diagnostic import REGISTRY, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of as captured_graph
from tests.lower.follow import followed

TESTS = Path(__file__).parent.parent
CASES = {  # by the plan: a code, and what tells it from others with that code
    "E0270": "chain",
    "E0366": "moving",
    "E0401": "chain",
    "E0401_apart": "chain",
    "E0401_permuted": "chain",
    "E0401_slices": "sequences.py:causal",
    "E0401_windows": "signal",
    "E0408": "chain",
    "E0203_statistics": "chain_statistics_2",
    "E0402": "chain_norm",
    "E0402_replicas": "chain_norm",
    "E0403": "chain",
    "E0403_back": "summed",
    "E0403_own": "branched",
    "E0403_parts": "summed",
    "E0403_outside": "chain",
    "E0404": "chain",
    "E0405": "chain",
    "E0404_axes": "chain",
    "E0406": "merged",
    "E0410": "mixtures.py:one",
}

WARNED = {"E0272": "chain_frozen", "E0275": "chain", "E0278": "chain"}


Way = Callable[[str, str, str], tuple[str, str]]  # from text, model and help to the text and model that follow it


def in_text(old: str, new: str) -> Way:
    """A change of the plan; `new` may have `{0}`, what the help quotes first."""

    def follow(text: str, model: str, said: str) -> tuple[str, str]:
        then = text.replace(old, new.format(*re.findall(r"`([^`]+)`", said)))
        assert then != text
        return then, model

    return follow


def as_said(number: int) -> Way:
    """The change of a line that the help names."""
    return lambda text, model, said: (followed(text, said, number), model)


def statistics(text: str, model: str, said: str) -> tuple[str, str]:
    """The model with statistics of as many parts as the help says."""
    found = re.search(r"micro_batch_statistics\(module, (\d+)\)", said)
    assert found
    return text, f"chain_statistics_{found[1]}"


WAYS: dict[str, tuple[Way, ...]] = {
    "E0270": (
        in_text("by row into node\n", "by row into local, node\n"),
        in_text("split model.grads by row into node\n", ""),
    ),
    "E0366": (in_text("gpus[pp = 1]", "gpus[pp = 0]"),),
    "E0401": (in_text("m = [6, 2]", "m = 2"),),
    "E0401_apart": (
        in_text(
            "(a = 2)\n\nsplit model by batch into a parts [[0, 3], [1, 2]], t = 2",
            "(a = 2, t = 2)\n\nsplit model by batch into a parts [[0, 3], [1, 2]], t",
        ),
        in_text(", t = 2\n", "\n"),
        in_text(", t = 2\n", "\nsplit model by width into t = 2\n"),
    ),
    "E0401_permuted": (in_text("way parts [[1], [0]], m = 2", "m = 2, way parts [[1], [0]]"),),
    "E0401_slices": (
        in_text("(cp = 2)", "(cp = 2, t = 3)"),
        in_text("split model by seq.keys into cp = [7, 6]\n", ""),
        in_text("seq.keys into cp = [7, 6]", "batch into cp"),
    ),
    "E0401_windows": (
        in_text("a = 2)\nsplit model by width into a, t = 2", "a = 2, t = 2)\nsplit model by width into a, t"),
        in_text("into a, t = 2", "into a"),
        in_text("into a, t = 2", "into a\nsplit model by batch into t = 2"),
    ),
    "E0408": (in_text("[[0, 3], [1, 2]]", "[[0, 1], [2, 3]]"),),
    "E0203_statistics": (in_text("r = 2", "r = 1"), statistics),
    "E0402": (in_text("mesh gpus(dp = 1)", "mesh gpus(m = 2)"), statistics),
    "E0402_replicas": (in_text("q = 1", "q = 1, m = 2"), statistics),
    "E0403": (as_said(0), as_said(1)),
    "E0403_outside": (as_said(0),),
    "E0403_back": (as_said(0), in_text("[first, last]", "balance(model, 2)")),
    "E0403_own": (as_said(0),),
    "E0403_parts": (as_said(0),),
    "E0404": (as_said(0),),
    "E0405": (in_text("assign model.w", "{0}\nassign model.w"),),
    "E0404_axes": (as_said(0),),
    "E0406": (in_text("[5, 3]", "2"),),
    "E0410": (in_text("c = 8", "{0}"),),
}


def graph_of(model: str) -> Graph:
    return captured_graph(model if ":" in model else f"tiny.py:{model}")


@pytest.mark.parametrize(("plan", "way"), [(plan, way) for plan in CASES for way in range(len(WAYS[plan]))])
def test_a_plan_that_follows_its_help_is_right(plan: str, way: int) -> None:
    text = (TESTS / "lower" / "plans" / f"{plan}.ssp").read_text("utf-8")
    said = (TESTS / "errors" / f"{plan}.err").read_text("utf-8").partition("help: ")[2]
    then, model = WAYS[plan][way](text, CASES[plan], said)
    compile_source(Source("plan.ssp", then), graph_of(model), {}, None)


@pytest.mark.parametrize(("plan", "model"), CASES.items())
def test_its_text(plan: str, model: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS / "lower" / "plans")
    graph = graph_of(model)
    with pytest.raises(PlanError) as raised:
        compile_plan(Path(f"{plan}.ssp"), graph, {})
    assert [d.code for d in raised.value.diagnostics] == [plan[:5]]
    golden(TESTS / "errors" / f"{plan}.err", "\n\n".join(map(render, raised.value.diagnostics)) + "\n")


@pytest.mark.parametrize(("code", "model"), WARNED.items())
def test_its_warning(
    code: str, model: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TESTS / "lower" / "plans")
    graph = graph_of(model)
    (found,) = compile_plan(Path(f"{code}.ssp"), graph, {}).warnings
    assert (found.code, found.severity) == (code, "warning")
    golden(TESTS / "errors" / f"{code}.err", render(found) + "\n")


def test_each_has_a_case_and_an_explanation() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own <= {plan[:5] for plan in (*CASES, *WARNED)}
    assert all(REGISTRY[code].__doc__ for code in own)
