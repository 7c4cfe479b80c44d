"""examples/transformers_trainer.py: Trainer's own loop on an engine, resumed under another plan."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT

SCRIPT = ROOT / "examples" / "transformers_trainer.py"


def logged(said: str) -> dict[float, float]:
    """The losses by their learning rates."""
    lines = [ast.literal_eval(line) for line in said.splitlines() if line.startswith("{'loss'")]
    return {float(line["learning_rate"]): float(line["loss"]) for line in lines}


def test_trainer_trains_under_a_plan_and_goes_on_under_another(torchrun: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")  # Trainer needs it, and ssdsl does not
    whole = logged(torchrun(SCRIPT, "--plan=pipeline", f"--out={tmp_path}", "--steps=12"))
    (tmp_path / "checkpoint-12").rename(tmp_path / "kept")
    rest = logged(torchrun(SCRIPT, "--plan=zero", f"--out={tmp_path}", "--steps=12", "--resume"))
    assert len(whole) == 12 and len(rest) == 6
    assert rest == pytest.approx({rate: whole[rate] for rate in rest}, abs=2e-3)
