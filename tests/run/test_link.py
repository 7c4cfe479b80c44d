"""`ssdsl run --link`: the numbers are those over gloo, the time is that of the links, and what cannot be is told."""

from pathlib import Path

import pytest
import typer

from ssdsl.cli.training import check_link
from ssdsl.run.launch import launch
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError

LATENCY_S = 0.05


@pytest.mark.slow
def test_a_run_over_the_emulated_network(mlp_program: Path, tmp_path: Path) -> None:
    """Two stages: in a step, one value goes to the second stage and its gradient comes back, each a latency."""
    over_gloo, over_link = (
        launch(mlp_program, Training(3, link=link), processes=4, out=tmp_path / str(link is None))
        for link in (None, f"bandwidth=10Gb/s,latency={LATENCY_S}s")
    )
    assert over_link.losses == over_gloo.losses
    assert min(over_link.step_s) > 2 * LATENCY_S


def test_a_speed_that_cannot_be_read() -> None:
    with pytest.raises(typer.BadParameter, match="`fast` is no rate"):
        check_link("bandwidth=fast", "cpu", 1)


@pytest.mark.parametrize(("device", "nodes", "fact"), [("cuda", 1, "on GPUs"), ("cpu", 2, "on 2 machines")])
def test_ranks_that_it_cannot_join(device: str, nodes: int, fact: str) -> None:
    with pytest.raises(PlanError, match=fact):
        check_link("bandwidth=1Gb/s", device, nodes)
