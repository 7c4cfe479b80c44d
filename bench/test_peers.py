"""The peers train on the numbers of the single process: `pytest bench`."""

import functools
from collections.abc import Callable

import pytest

from bench.contenders import CONTENDERS, SINGLES, Contender, Plan
from bench.launch import launch
from bench.steps import tolerance

Losses = Callable[[Contender], tuple[float, ...]]
STEPS = 3
PEERS = [c for c in CONTENDERS if not isinstance(c.program, Plan)]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """The losses of a contender's first steps."""

    @functools.cache
    def of(contender: Contender) -> tuple[float, ...]:
        return launch(contender, tmp_path_factory.mktemp("peer"), steps=STEPS, warmup=0).losses

    return of


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.strategy}, {peer.program}")
def test_losses_are_those_of_the_single_process(peer: Contender, losses: Losses) -> None:
    assert losses(peer) == pytest.approx(losses(SINGLES[peer.model]), rel=tolerance(peer))
