"""The options of a compiled program's `main.py`."""

import sys

import pytest

from ssdsl.runtime.main import _options


def test_an_optimizer_that_torch_does_not_have_is_refused_before_the_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--optimizer", "AdamW"])
    assert _options().optimizer == "adamw"
    monkeypatch.setattr(sys, "argv", ["main.py", "--optimizer", "adamv"])
    with pytest.raises(SystemExit):
        _options()
    assert "invalid choice: 'adamv' (choose from" in capsys.readouterr().err
