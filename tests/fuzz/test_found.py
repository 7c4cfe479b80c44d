"""What the fuzzer once found wrong, made small: each is equal now, or refused with a reason."""

from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW, try_plan
from ssdsl.model.load import load
from ssdsl.model.trace import capture
from ssdsl.run.launch import Training

FOUND = sorted((Path(__file__).parent / "found").iterdir())
REFUSED = {
    "uneven_reshape_merge": "E0406",
    "slices_inside_unequal_parts": "E0406",
    "keys_cut_within_slices": "E0401",
    "unequal_parts_sent": "E0406",
    "causal_parts_out_of_order": "E0408",
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("folder", FOUND, ids=lambda path: path.name)
def test_found(folder: Path) -> None:
    model = load(f"{folder / 'model.py'}:net")
    training = Training(2, optimizer="adamw" if "adamw" in folder.name else "sgd", lr=0.02)
    cluster = SLOW if "slow_links" in folder.name else None
    outcome = try_plan(model, capture(model), (folder / "plan.ssp").read_text(), training, cluster)
    if folder.name in REFUSED:
        assert (outcome.kind, outcome.sign) == ("refused", REFUSED[folder.name])
    else:
        assert outcome.kind == "equal", outcome.text
