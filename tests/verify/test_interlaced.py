"""Plans of encoder-decoders with large embeddings: interlaced pipelines, and the fixed strategies beside them."""

from collections.abc import Callable
from typing import Any

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.simulate import simulate
from tests.verify.conftest import ROOT, captured

PAPERS = ROOT / "examples" / "papers"
S = 4


@pytest.mark.thinned(9)
@pytest.mark.parametrize("model", ["mbart", "t5"])
@pytest.mark.parametrize(
    ("plan", "params"),
    [
        ("interlaced", {}),
        ("interlaced", {"S": 2, "T": 2, "M": 4, "R": 1}),
        ("interlaced", {"D": 2, "S": 2, "M": 2}),
        pytest.param("megatron", {"D": 2, "R": 1}, marks=pytest.mark.slow),
        ("megatron", {"S": 1, "T": 4, "M": 1}),  # tensor parallelism alone
        pytest.param("zero3", {"M": 2, "R": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_its_plans_train_as_one_device(
    program: Callable[..., Any], model: str, plan: str, params: dict[str, int]
) -> None:
    program(PAPERS / f"{model}_{plan}.ssp", f"{model}:tiny", **params).verify()


@pytest.mark.parametrize("micro_batches", [S, 2 * S])
def test_bubble_of_an_interlaced_pipeline(micro_batches: int) -> None:
    """(S - 1) (F + B), however long the ends take: all devices work on them."""
    _, graph = captured("mbart:tiny,layers=4")
    compiled = compile_plan(PAPERS / "mbart_interlaced.ssp", graph, {"S": S, "M": micro_batches})
    ends = [f.name for f in compiled.program.functions if not f.submesh.fixed]
    assert len(ends) == 3  # two embeddings, the scores with the loss
    tasks = {f"{name}.{phase}": 0.25 for name in ends for phase in ("fwd", "bwd")}
    for forward, backward in ((1.0, 1.0), (1.0, 3.0), (2.0, 1.0)):
        times = Measured(compiled.program, Times(forward, backward, tasks=tasks))
        found = simulate(compiled.program, compiled.source, load_cluster("laptop"), times)
        work = micro_batches * (forward + backward + sum(tasks.values()))
        assert found.step_s - work == pytest.approx((S - 1) * (forward + backward))
