"""What is written, and predicted, once for each kind of section and function is what each alone would get."""

from collections.abc import Callable

import pytest

from ssdsl.codegen.write import program_files
from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.prove.conftest import compiled as compiled
from tests.prove.mutations.mutant import unshared
from tests.simulate.steps import cluster_of

GPT = "gpt:tiny,layers=4"
PLANS = [
    ("megatron", GPT, {"S": 2, "M": 2}),
    ("megatron", "gpt:tiny,layers=4,dropout=0.1", {"S": 1, "M": 2}),
    ("zero", GPT, {"Z": 2}),
    ("zero", GPT, {"Z": 3}),
    ("zero_bubble", GPT, {}),
    ("sequence_parallel", GPT, {}),
    ("recomputed", GPT, {}),
    ("interlaced_loss", GPT, {}),
    ("uneven", GPT, {}),
    ("co_shard", "swin:tiny", {}),
    ("data_parallel", "resnet:18", {"D": 2}),
    ("experts", "mixtral:tiny", {}),
]


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("plan", "model", "params"), PLANS)
def test_shared_and_unshared_programs_are_equal(
    compiled: Callable[..., Program], plan: str, model: str, params: dict[str, int]
) -> None:
    program = compiled(plan, model, **params)
    alone = unshared(program)
    assert program_files(program) == program_files(alone)
    reports = [simulate(p, Source(f"{plan}.ssp", ""), cluster_of("a100x1024")) for p in (program, alone)]
    assert reports[0].step_s == pytest.approx(reports[1].step_s, rel=1e-12)
    assert [d.peak_parts for d in reports[0].devices] == [d.peak_parts for d in reports[1].devices]
    assert not prove(program).failures and not prove(alone).failures
