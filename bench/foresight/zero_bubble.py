"""Zero Bubble on A100s: Qi et al. 2023 (arXiv 2401.10241), table 4: the most that a device allocates, in units of 10^9.

The first and the last stage have a layer less (section 5.1). ZB-2p is what the paper's own scheduler finds within twice
the memory of 1F1B, 2 p micro-batches on a device; here the clock of ZB-H2 holds as many.
"""

from collections.abc import Iterator
from pathlib import Path

from bench.foresight.row import Row
from bench.foresight.step import step
from ssdsl.simulate.state import State

PLAN = str(Path(__file__).parent / "plans" / "zero_bubble.ssp")
GB = 1e9


def table_4() -> Iterator[Row]:
    """GB of the 1.5 billion model of 22 layers, six sequences in a micro-batch; gradients are in float32."""
    for name, schedule, measured in (("1.5b, 1F1B", 0, 30), ("1.5b, ZB-2p", 2, 59)):
        report = step(PLAN, "zero_bubble_1_5b", "a100x8", {"M": 24, "H": schedule}, State(fp32_grads=True))
        yield Row(name, measured, max(d.peak_bytes for d in report.devices) / GB, "GB")
