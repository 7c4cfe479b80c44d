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
CASES = {  # by the plan: a code, and what tells it from others with that code
    "E0366": "moving",
    "E0401": "chain",
    "E0401_permuted": "chain",
    "E0408": "chain",
    "E0203_statistics": "chain_statistics_2",
    "E0402": "chain_norm",
    "E0402_replicas": "chain_norm",
    "E0403": "chain",
    "E0403_back": "summed",
    "E0404": "chain",
    "E0405": "chain_shared",
    "E0406": "merged",
    "E0407": "totalled",
}


@pytest.mark.parametrize(("plan", "model"), CASES.items())
def test_its_text(plan: str, model: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS / "lower" / "plans")
    graph = capture(load(f"{TESTS / 'models' / 'tiny.py'}:{model}"))
    with pytest.raises(PlanError) as raised:
        compile_plan(Path(f"{plan}.ssp"), graph, {})
    assert [d.code for d in raised.value.diagnostics] == [plan[:5]]
    golden(TESTS / "errors" / f"{plan}.err", "\n\n".join(map(render, raised.value.diagnostics)) + "\n")


def test_each_has_a_case_and_an_explanation() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own <= {plan[:5] for plan in CASES}
    assert all(REGISTRY[code].__doc__ for code in own)
