"""Small models and plans of what once went wrong: each is equal to one device, or refused with a reason."""

from pathlib import Path

import pytest

from bench.fuzz.models import Recipe
from bench.fuzz.trial import SLOW, captured, try_plan
from ssdsl.runtime.options import Training
from tests.captured import captured as captured_file
from tests.fuzz import attention_and_draws, buffers, cuts
from tests.fuzz.case import Case


def recipes() -> dict[str, Case]:
    """Those of recipes.ssp. The first line of each has its name, and the arguments of a case but for its plan."""
    blocks = Path(__file__).with_name("recipes.ssp").read_text().split("\n\n")
    lines = [block.removeprefix("# ").partition("\n") for block in blocks]
    names = {"Recipe": Recipe, "SLOW": SLOW, "Case": Case}
    heads = [(*head.partition(": ")[::2], plan) for head, _, plan in lines]
    return {name: eval(f"Case(plan={plan!r}, model={arguments})", names) for name, arguments, plan in heads}


MODULES = {
    name: (f"{file.__file__}:{name}", found)
    for file in (buffers, attention_and_draws, cuts)
    for name, found in vars(file).items()
    if isinstance(found, Case)
}
CASES = MODULES | {name: (found.model, found) for name, found in recipes().items()}


@pytest.mark.thinned(24)
@pytest.mark.parametrize(("model", "case"), CASES.values(), ids=CASES)
def test_a_case_is_equal_or_refused(model: Recipe | str, case: Case) -> None:
    found = captured(model) if isinstance(model, Recipe) else captured_file(model)
    outcome = try_plan(*found, case.plan, Training(2, optimizer=case.optimizer, lr=0.02), case.cluster)
    if case.refused is None:
        assert outcome.kind == "equal", outcome.text
    else:
        assert (outcome.kind, outcome.sign) == ("refused", case.refused)
