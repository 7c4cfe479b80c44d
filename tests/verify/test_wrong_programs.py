"""Programs made wrong on purpose: one communication left out, and the comparison names a tensor that shows it."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

DISAGREE = r"ranks 0 and 1 disagree on step 0's gradient `[\w.]+\.(weight|bias)`"  # copies that drift apart


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_an_all_reduce_left_out(program: Callable[..., Any], phase: str) -> None:
    wrong = program("tensor_parallel")
    role = wrong.folder / "role_gpus.py"
    text, dropped = re.subn(rf", {phase}=\[all_reduce_?\(tp\)\]", "", role.read_text(), count=1)
    assert dropped
    role.write_text(text)
    assert re.search(DISAGREE, found(wrong))


def test_a_gradient_not_summed(program: Callable[..., Any]) -> None:
    """Without the all_reduce over replicas each rank trains on its own part of the batch."""
    wrong = program("data_parallel")
    role = wrong.folder / "role_gpus.py"
    text, dropped = re.subn(r"    run\.wait_reduce\(\d+\)\n", "", role.read_text())
    text, started = re.subn(r"(run\.backward\(block0), \[[\d, ]+\]", r"\1", text)
    assert dropped and started
    role.write_text(text)
    assert re.search(DISAGREE, found(wrong))


@pytest.mark.slow
def test_a_part_scaled(program: Callable[..., Any]) -> None:
    """A thousandth too much between two stages."""
    wrong = program("pipeline", "gpt:tiny,seq=16")
    role = wrong.folder / "role_gpus_pp0.py"
    text, changed = re.subn(r"return \((\w+),\)\n", r"return (\1 * 1.001,)\n", role.read_text())
    assert changed
    role.write_text(text)
    assert "error[E0512]: loss `step 0` differs from the single device's" in found(wrong)


def test_a_gradient_too_small_to_see(program: Callable[..., Any]) -> None:
    """Times -3, in a layer whose gradients are a hundred million times smaller than the rest."""
    wrong = program("data_parallel", "faint.py:faint")
    role = wrong.folder / "role_gpus.py"
    text, changed = re.subn(r"\* 1e-08\b", "* -3e-08", role.read_text())
    assert changed
    role.write_text(text)
    assert re.search(r"error\[E0512\]: gradient `step 0 faint\.", found(wrong))


def found(wrong: Any) -> str:
    """What verify says of the program, as the user sees it."""
    try:
        tensor = wrong.difference()
    except PlanError as error:
        return "\n".join(map(render, error.diagnostics))
    assert tensor is not None, "verify found nothing"
    return render(tensor)
