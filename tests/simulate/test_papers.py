"""With measured costs, schedules take what their papers say; long sequences train as fast as FlashAttention-2 does."""

import pytest

from bench.foresight.flash_attention import TABLE_1
from ssdsl.simulate.profile.measured import Times
from tests.simulate.steps import compiled, step

# Zero Bubble (Qi et al. 2023, arXiv 2401.10241): times in ms of table 6, rates of table 5
GPT = "gpt:tiny,layers=8,batch=24,hidden=16,heads=2,seq=8,vocab=16"
CHAIN = "models.py:chain_of_32"  # a GPT of 16 or 32 layers gives the same, and takes half a minute
ZERO_BUBBLE = {
    "8 stages": (GPT, 8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    "16 stages": (CHAIN, 16, 64, (11.307, 11.254, 8.101, 0.379), (0.2082, 0.1088, 0.0516)),
    "32 stages": (CHAIN, 32, 256, (10.402, 10.248, 7.698, 0.460), (0.1352, 0.0594, 0.0257)),
}
PLANS = (("one_f_one_b", {}), ("zero_bubble", {"H": 1}), ("zero_bubble", {"H": 2}))


@pytest.mark.parametrize("case", ["8 stages", *(pytest.param(f"{n} stages", marks=pytest.mark.slow) for n in (16, 32))])
def test_bubbles_of_zero_bubble(case: str) -> None:
    spec, stages, micro_batches, times_ms, rates = ZERO_BUBBLE[case]
    times = Times(*(t * 1e-3 for t in times_ms))
    found = []
    for plan, params in PLANS:
        report = step(compiled(plan, spec, S=stages, M=micro_batches, **params), times)
        assert len(report.devices) == stages
        found.append(round(report.bubble, 4))
    assert tuple(found) == rates


@pytest.mark.parametrize(("stages", "micro_batches", "time"), [(4, 8, 60), (4, 16, 108), (8, 16, 124), (8, 64, 412)])
def test_time_of_three_f_one_b(stages: int, micro_batches: int, time: int) -> None:
    """6M + 4(p - 1): a stage has three forwards of 1 and a backward of 3, and the pipeline fills and drains."""
    assert time == 6 * micro_batches + 4 * (stages - 1)
    program = compiled("three_f_one_b", "recycling.py:recycling_deep", S=stages, M=micro_batches)
    assert step(program, Times(1, 2, 1)).step_s == pytest.approx(time)


@pytest.mark.parametrize(("run", "tflops"), [TABLE_1[1]], ids=["8192 tokens"])
def test_attention_is_slower_than_products(run, tflops: float) -> None:
    """`python -m bench foresight --only flash` compares the other rows too."""
    assert run.tflops() == pytest.approx(tflops, rel=0.05)
