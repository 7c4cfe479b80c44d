"""The diagnostics of lowering, each with a plan and a model that it meets."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.compile import compile_plan
from ssdsl.lower import errors
from ssdsl.model.load import load
from ssdsl.model.trace import capture
from ssdsl.text.diagnostic import REGISTRY, PlanError
from ssdsl.text.render import render

TESTS = Path(__file__).parent.parent
CASES = {
    "E0270": "chain",
    "E0366": "moving",
    "E0401": "chain",
    "E0408": "chain",
    "E0402": "chain_norm",
    "E0403": "chain",
    "E0404": "chain",
    "E0405": "chain_shared",
    "E0406": "merged",
    "E0407": "totalled",
}

WARNED = {"E0272": "chain_frozen", "E0275": "chain"}


@pytest.mark.parametrize(("code", "model"), CASES.items())
def test_its_text(code: str, model: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS / "lower" / "plans")
    graph = capture(load(f"{TESTS / 'models' / 'tiny.py'}:{model}"))
    with pytest.raises(PlanError) as raised:
        compile_plan(Path(f"{code}.ssp"), graph, {})
    assert [d.code for d in raised.value.diagnostics] == [code]
    golden(TESTS / "errors" / f"{code}.err", "\n\n".join(map(render, raised.value.diagnostics)) + "\n")


@pytest.mark.parametrize(("code", "model"), WARNED.items())
def test_its_warning(
    code: str, model: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TESTS / "lower" / "plans")
    graph = capture(load(f"{TESTS / 'models' / 'tiny.py'}:{model}"))
    (found,) = compile_plan(Path(f"{code}.ssp"), graph, {}).warnings
    assert (found.code, found.severity) == (code, "warning")
    golden(TESTS / "errors" / f"{code}.err", render(found) + "\n")


def test_each_has_a_case_and_an_explanation() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == {*CASES, *WARNED}
    assert all(REGISTRY[code].__doc__ for code in own)
