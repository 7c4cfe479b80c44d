"""FlashAttention-2 on eight A100s: Dao 2023 (arXiv 2307.08691), table 1: TFLOP/s of a device that trains GPT-3 without
recomputation, the batch over all devices. The paper does not give the batch; here it is a million tokens, in
micro-batches of 16384 tokens on a device, or 8192.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.foresight.row import Row
from bench.foresight.step import graph, step

GPUS, VOCAB = 8, 50264
PLAN = "gpt_megatron"


@dataclass(frozen=True, slots=True)
class Run:
    """A model with sequences of so many tokens, in micro-batches of `b` sequences on a device."""

    model: str
    layers: int
    hidden: int
    seq: int
    b: int

    def tflops(self) -> float:
        """TFLOP/s of a device as the paper counts them: 6 for each parameter and token, and all scores of attention."""
        micro_batches = 2**20 // (GPUS * self.b * self.seq)
        sizes = {"D": GPUS, "T": 1, "S": 1, "V": 1, "M": micro_batches, "P": 0, "R": 0}
        parameters = 12 * self.layers * self.hidden**2 + VOCAB * self.hidden
        each = 6 * parameters + 12 * self.layers * self.hidden * self.seq
        tokens = self.b * self.seq * micro_batches
        return tokens * each / step(PLAN, self.model, f"a100x{GPUS}", sizes).step_s / 1e12


TABLE_1 = (
    (Run("flash_1_3b_2k", 24, 2048, 2048, 8), 196),
    (Run("flash_1_3b_8k", 24, 2048, 8192, 2), 220),
    (Run("flash_2_7b_2k", 32, 2560, 2048, 4), 205),
    (Run("flash_2_7b_8k", 32, 2560, 8192, 1), 225),
)
CALIBRATED = ("flash_1_3b_8k",)  # the rate of attention


def table_1() -> Iterator[Row]:
    """TFLOP/s of a device."""
    for run, measured in TABLE_1:
        yield Row(run.model, measured, run.tflops(), "TFLOP/s", run.model in CALIBRATED)
        graph.cache_clear()
