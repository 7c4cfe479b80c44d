"""Alpa on V100s: Zheng et al. 2022 (arXiv 2201.12023), figure 7, and the plans that it publishes for them
(alpa-projects/alpa, benchmark/alpa/suite_auto_gpt.py), with each layer recomputed.
"""

from collections.abc import Iterator
from pathlib import Path

from bench.foresight.row import Row
from bench.foresight.step import step

PLANS = Path(__file__).parent / "plans"
BATCH, SEQ, VOCAB = 1024, 1024, 51200


def figure_7() -> Iterator[Row]:
    """PFLOP/s of all devices, as Alpa counts them: forward twice, backward once."""
    three = step(str(PLANS / "alpa_2_6b.ssp"), "alpa_2_6b", "p3x8", {"M": 128})
    yield Row("2.6b on 8, stages of 2, 2, 4", 0.47, _pflops(32, 2560, three.step_s), "PFLOP/s", calibrates=True)
    sizes = {"S": 4, "D": 2, "T": 4, "V": 1, "M": 128, "P": 0, "R": 1}
    four = step("gpt_megatron", "alpa_15b", "p3x32", sizes)
    yield Row("15b on 32, stages of (2, 4)", 1.89, _pflops(48, 5120, four.step_s), "PFLOP/s", calibrates=True)


def _pflops(layers: int, hidden: int, step_s: float) -> float:
    tokens = BATCH * SEQ
    flops = 96 * tokens * hidden**2 * layers * (1 + SEQ / (6 * hidden)) + 6 * tokens * hidden * VOCAB
    return flops / step_s / 1e15
