"""Weights that other losses train: refuted are a loss that reaches one of them, and one that does not name them."""

from pathlib import Path

import pytest

from ssdsl.compile import compile_resized, compile_source
from ssdsl.ir.program import Program
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.text.source import Source
from tests.train.test_losses import AXES, LOSSES, batches, gan

ZERO = """mesh gpus(dp = 2)
split model by batch into dp
split model.weights by row into dp
assign model to gpus
"""


@pytest.fixture(scope="module")
def critic() -> Program:
    """The program of the critic's loss, which does not reach the generator."""
    model = model_of(gan(), batches(1)[0], AXES, loss=LOSSES)
    training = compile_source(Source("zero.ssp", ZERO), capture(model), {}, Path())
    return compile_resized(training, capture(model.with_loss("critic"))).program


def test_it_names_what_it_leaves_alone(critic: Program) -> None:
    assert {name.partition(".")[0] for name in critic.unreached} == {"generator"}
    assert prove(critic).failures == ()


def test_a_weight_that_is_reached_is_not_left_out(critic: Program) -> None:
    assert prove(replace(critic, unreached=critic.unreached | {"critic.0.weight"})).failures


def test_a_weight_without_a_gradient_is_said_to_be_left_out(critic: Program) -> None:
    assert prove(replace(critic, unreached=frozenset())).failures
