"""The benchmark of training uses the engine's inside: it still runs."""

import pytest

from bench.training import main


@pytest.mark.slow
def test_it_measures_a_plan(capfd) -> None:
    assert main(["--rounds", "1", "--steps", "1", "--only", "ZeRO-1", "--model", "gpt:tiny,layers=1"]) == 0
    shown = capfd.readouterr().out
    assert "processor" in shown and "torch.lo" in shown
