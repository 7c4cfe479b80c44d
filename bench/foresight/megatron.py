"""Megatron-LM on A100s: Narayanan et al. 2021 (arXiv 2104.04473), table 1; Korthikanti et al. 2022 (arXiv 2205.05198),
table 5; MegaScale, Jiang et al. 2024 (arXiv 2402.15627), table 2, its baseline. Sizes of micro-batches and interleaving
are those of the scripts that Megatron-LM publishes with the first, of the second's table 3, and of the third's table 1
and section 6.1. The scripts: examples/academic_paper_scripts/sc21/run_table_1.sh.

In 2021 gradients were reduced behind the last task, and devices computed nothing while they sent. In 2022 what
products exchange in backward was hidden behind the gradients of their weights (the second's sections 4.2.2 and 6.1).

Table 5 is simulated without contention: the paper does not say by how much these products were slower. With the 0.19 of
the cluster's file steps are 0.4 to 1.1 % longer, and most are too long without it. The median error would be 2.5 %, and
the worst, of the 1T model in 64 stages of two layers, 8.6 %. MegaScale's rows are nearer with it: 4.0 and 7.7 % instead
of 4.6 and 8.4 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.foresight.row import Row
from bench.foresight.step import graph, step
from ssdsl.cluster.device import Overlap

SEQ, VOCAB = 2048, 51200
PLAN = "gpt_megatron"
STACK_2021 = Overlap(sends=False, gradients=False)
STACK_2022 = Overlap(sends=False, gradients=False, products=True)


@dataclass(frozen=True, slots=True)
class Run:
    """A model on so many devices: `t` wide, `p` deep, `v` stages on a device, `b` sequences in a micro-batch."""

    model: str
    layers: int
    hidden: int
    gpus: int
    batch: int
    t: int
    p: int
    v: int
    b: int

    def step_s(
        self, stack: Overlap, *, sequence: int = 0, recompute: int = 1, contention: float | None = None
    ) -> float:
        """Seconds of a step; by default with the contention of the cluster's file."""
        d = self.gpus // (self.t * self.p)
        sizes = {"D": d, "T": self.t, "S": self.p, "V": self.v, "M": self.batch // d // self.b}
        cluster = f"a100x{max(self.gpus, 8)}"
        sizes |= {"P": sequence, "R": recompute}
        return step(PLAN, self.model, cluster, sizes, overlap=stack, contention=contention).step_s

    def tflops(self, step_s: float) -> float:
        """TFLOP/s of a device as the paper counts them (its equation 3): forward twice, backward once."""
        layer = 1 + SEQ / (6 * self.hidden) + VOCAB / (16 * self.layers * self.hidden)
        flops = 96 * self.batch * SEQ * self.layers * self.hidden**2 * layer
        return flops / step_s / self.gpus / 1e12


TABLE_1 = (  # and the TFLOP/s of a device
    (Run("sc21_1_7b", 24, 2304, 32, 512, 1, 1, 1, 16), 137),
    (Run("sc21_3_6b", 30, 3072, 64, 512, 2, 1, 1, 16), 138),
    (Run("sc21_7_5b", 36, 4096, 128, 512, 4, 1, 1, 16), 142),
    (Run("sc21_18b", 40, 6144, 256, 1024, 8, 1, 1, 8), 135),
    (Run("sc21_39b", 48, 8192, 512, 1536, 8, 2, 1, 4), 138),
    (Run("sc21_76b", 60, 10240, 1024, 1792, 8, 4, 3, 2), 140),
    (Run("sc21_145b", 80, 12288, 1536, 2304, 8, 8, 2, 2), 148),
    (Run("sc21_310b", 96, 16384, 1920, 2160, 8, 16, 2, 1), 155),
    (Run("sc21_530b", 105, 20480, 2520, 2520, 8, 35, 3, 1), 163),
    (Run("sc21_1t", 128, 25600, 3072, 3072, 8, 64, 1, 1), 163),
)
TABLE_5 = (  # and the seconds with full recomputation, with sequence parallelism and that of attention alone
    (Run("korthikanti_22b", 48, 6144, 8, 4, 8, 1, 1, 4), 1.42, 1.10),
    (Run("korthikanti_175b", 96, 12288, 64, 64, 8, 8, 3, 1), 18.13, 13.75),
    (Run("korthikanti_530b", 105, 20480, 280, 280, 8, 35, 3, 1), 49.05, 37.83),
    (Run("korthikanti_1t", 128, 25600, 512, 512, 8, 64, 1, 1), 94.42, 71.49),
)
TABLE_2 = (  # and the seconds of Megatron-LM
    (Run("megascale_768", 96, 12288, 256, 768, 8, 8, 6, 1), 40.0),
    (Run("megascale_768", 96, 12288, 512, 768, 8, 8, 6, 1), 21.2),
    (Run("megascale_768", 96, 12288, 768, 768, 8, 8, 6, 1), 15.2),
    (Run("megascale_768", 96, 12288, 1024, 768, 8, 8, 6, 1), 11.9),
    (Run("megascale_6144", 96, 12288, 3072, 6144, 8, 8, 6, 1), 29.02),
    (Run("megascale_6144", 96, 12288, 6144, 6144, 8, 8, 6, 1), 14.78),
    (Run("megascale_6144", 96, 12288, 8192, 6144, 8, 8, 6, 1), 12.24),
    (Run("megascale_6144", 96, 12288, 12288, 6144, 8, 8, 6, 1), 8.57),
)
CALIBRATED = ("sc21_1_7b", "sc21_18b", "sc21_76b", "sc21_310b", "korthikanti_22b", "korthikanti_530b")


def table_1() -> Iterator[Row]:
    """TFLOP/s of a device, all layers recomputed."""
    for run, measured in TABLE_1:
        yield Row(run.model, measured, run.tflops(run.step_s(STACK_2021)), "TFLOP/s", run.model in CALIBRATED)
        graph.cache_clear()


def table_5() -> Iterator[Row]:
    """Seconds, and what sequence parallelism with less recomputation gains."""
    for run, full, less in TABLE_5:
        whole = run.step_s(STACK_2022, contention=0.0)
        found = whole, run.step_s(STACK_2022, sequence=1, recompute=2, contention=0.0)
        calibrates = run.model in CALIBRATED
        yield Row(f"{run.model}, all recomputed", full, found[0], "s", calibrates)
        yield Row(f"{run.model}, sequence parallel", less, found[1], "s", calibrates)
        yield Row(f"{run.model}, gain", full / less, found[0] / found[1], "x", calibrates)
        graph.cache_clear()


def table_2() -> Iterator[Row]:
    """Seconds of the same model on more devices, with sequence parallelism and the recomputation of attention alone."""
    for run, measured in TABLE_2:
        yield Row(f"175B on {run.gpus}", measured, run.step_s(STACK_2022, sequence=1, recompute=2), "s")
    graph.cache_clear()
