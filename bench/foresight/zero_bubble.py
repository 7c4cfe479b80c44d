"""Zero Bubble on A100s: Qi et al. 2023 (arXiv 2401.10241), table 4: the most that a device allocates, in units of 10^9.

The first and the last stage have a layer less (section 5.1). Gradients are in float16: the authors' script
(`examples/pretrain_zero_bubble.sh`, branch `arxiv` of sail-sg/zero-bubble-pipeline-parallelism) asks for `--fp16` and
not for `--accumulate-allreduce-grads-in-fp32`. ZB-2p is what the paper's own scheduler finds within twice the memory
of 1F1B, 2 p micro-batches on a device; here the clock of ZB-H2 holds as many.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.foresight.row import Row
from bench.foresight.step import step

PLAN = str(Path(__file__).parent / "plans" / "zero_bubble.ssp")
GB = 1e9
SCHEDULES = {"1F1B": 0, "ZB-2p": 2}


@dataclass(frozen=True, slots=True)
class Run:
    """A model in `p` stages of `k` layers, with so many micro-batches."""

    model: str
    p: int
    k: int
    micro_batches: int

    def peak_bytes(self, schedule: str) -> int:
        """Of the fullest device."""
        params = {"S": self.p, "K": self.k, "M": self.micro_batches, "H": SCHEDULES[schedule]}
        return max(d.peak_bytes for d in step(PLAN, self.model, f"a100x{self.p}", params).devices)


TABLE_4 = (  # and the GB with 1F1B and with ZB-2p
    (Run("zero_bubble_1_5b", 8, 3, 24), (30, 59)),
    (Run("zero_bubble_6_2b", 8, 4, 24), (39, 70)),
    (Run("zero_bubble_14_6b", 16, 3, 48), (32, 51)),
    (Run("zero_bubble_28_3b", 32, 2, 96), (43, 74)),
)


def table_4() -> Iterator[Row]:
    """GB of each model under both schedules."""
    for run, published in TABLE_4:
        name = run.model.removeprefix("zero_bubble_").replace("_", ".")
        for schedule, measured in zip(SCHEDULES, published, strict=True):
            yield Row(f"{name}, {schedule}", measured, run.peak_bytes(schedule) / GB, "GB")
