"""What the fuzzer once found wrong, made small: each is equal now, or refused with a reason."""

from pathlib import Path

import pytest

from bench.fuzz.trial import captured, try_plan
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.runtime.options import Training
from tests.captured import captured as captured_file
from tests.fuzz.found import FOUND, Found

MODELS = Path(__file__).parent / "found_models.py"


def of(found: Found) -> tuple[Model, Graph]:
    return captured_file(f"{MODELS}:{found.model}") if isinstance(found.model, str) else captured(found.model)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_equal_or_refused(name: str) -> None:
    found = FOUND[name]
    training = Training(2, optimizer=found.optimizer, lr=0.02)
    outcome = try_plan(*of(found), found.plan, training, found.cluster)
    if found.refused is not None:
        assert (outcome.kind, outcome.sign) == ("refused", found.refused)
    else:
        assert outcome.kind == "equal", outcome.text
