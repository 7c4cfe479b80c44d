"""Zero Bubble on A100s: Qi et al. 2023 (arXiv 2401.10241), table 4: the most that a device allocates."""

from collections.abc import Iterator

from bench.foresight.row import Row
from bench.foresight.step import step
from ssdsl.simulate.state import State

STAGES, MICRO_BATCHES = 8, 24
GIB = 2**30


def table_4() -> Iterator[Row]:
    """GB of the 1.5 billion model of 22 layers, six sequences in a micro-batch; gradients are in float32."""
    sizes, state = {"S": STAGES, "M": MICRO_BATCHES}, State(fp32_grads=True)
    for name, plan, more, measured in (
        ("1.5b, 1F1B", "papers/gpt_megatron", {"D": 1, "T": 1, "V": 1, "P": 0, "R": 0}, 30),
        ("1.5b, ZB-2p", "zero_bubble", {"H": 2}, 59),
    ):
        report = step(plan, "zero_bubble_1_5b", f"a100x{STAGES}", sizes | more, state)
        most = max(d.peak_bytes for d in report.devices)
        yield Row(name, measured, most / GIB, "GiB", calibrates=True)
