"""Bytes of activations of a layer: Korthikanti et al. 2022 (arXiv 2205.05198), table 2.

With s positions, batch b, hidden h, a heads and tensor parallelism t, of 16-bit numbers. The paper leaves out what it
calls small; of that the mean and the deviation of the two norms, 8sb, are in the numbers here.
"""

from collections.abc import Iterator

from bench.foresight.row import Row
from bench.foresight.step import compiled
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.program import Kernels, Program
from ssdsl.record import replace
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.price.fusion import Fusion

S, B, H, A, T = 2048, 4, 6144, 64, 8
SB = S * B
SBH = SB * H
SCORES = 5 * A * S / H  # 5as/h: softmax 2, what dropout gives 2, its mask 1
CLUSTER = "a100x8"

RUNS = (  # tensor parallelism, sequence parallelism, recomputation, and bytes in units of sbh
    ("no parallelism", 1, 0, 0, 34 + SCORES),
    ("tensor parallelism", T, 0, 0, 10 + 24 / T + SCORES / T),
    ("tensor and sequence parallelism", T, 1, 0, 34 / T + SCORES / T),
    ("tensor parallelism, attention recomputed", T, 0, 2, 10 + 24 / T),
    ("tensor and sequence parallelism, attention recomputed", T, 1, 2, 34 / T),
    ("all recomputed", 1, 0, 1, 2),
)


def table_2() -> Iterator[Row]:
    """MB of a layer: what a model of three layers keeps more than one of two."""
    for name, t, sequence, recompute, units in RUNS:
        sizes = {"D": 1, "T": t, "S": 1, "V": 1, "M": 1, "P": sequence, "R": recompute}
        three, two = (_kept(compiled("gpt_megatron", m, CLUSTER, tuple(sizes.items())).program) for m in MODELS)
        norms = 0 if recompute == 1 else 8 * SB / (t if sequence else 1)
        yield Row(name, (units * SBH + norms) / 1e6, (three - two) / 1e6, "MB")


MODELS = ("layers_3", "layers_2")


def _kept(program: Program) -> int:
    says = Activations(facts := ProgramIndex(replace(program, kernels=Kernels.FUSED)), Fusion(facts))
    return sum(says.of(f).size_bytes for f in program.functions)
