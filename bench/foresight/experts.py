"""Experts on H100s: Megatron-Bridge, docs/training/communication-overlap.md and pull request 3862 (NVIDIA-NeMo, 2026).
Qwen3-30B-A3B trains on 16 H100s, in two nodes, in bfloat16, on 1024 sequences a step; a step takes 41.25 s, and 31.31 s
if the all_to_all of a micro-batch travels while the devices compute another one. There is no gain for experts over 4
devices.

The source says: experts over all 16 devices, one `all_to_all`, balanced routing, no CUDA graphs, permutations not
fused. Its recipe has sequences of 4096, one in a micro-batch, and no other axis. Assumed: kernels one by one, the
bandwidth of the cluster's file (0.9 of InfiniBand's), and two micro-batches at once, forward beside forward and
backward beside backward; Megatron runs the backward of one beside the forward of the next. Memory is not compared: the
optimizer's state is not in parts here. The simulator says 46.7 and 35.2 s, and 1.08 times for experts over 4 devices.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.foresight.row import Row
from bench.published.run import CONFIGS
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.model.graph import Graph
from ssdsl.simulate.simulate import simulate

PLAN, GPUS = Path(__file__).parent / "plans" / "experts_in_turn.ssp", 16
MICRO_BATCHES = 64


def overlap() -> Iterator[Row]:
    """The times by which a step is longer if the rows of a micro-batch do not travel beside another one."""
    yield Row("experts over 16 devices", 41.25 / 31.31, _gain(GPUS), "times")
    yield Row("experts over 4 devices", 1.0, _gain(4), "times")


def _gain(experts: int) -> float:
    return _step_s(experts, at_once=1) / _step_s(experts, at_once=2)


def _step_s(experts: int, *, at_once: int) -> float:
    """Seconds of a step, with so many micro-batches at once."""
    cluster = load_cluster("h100x1024")
    params = {"E": experts, "D": GPUS // experts, "M": MICRO_BATCHES, "A": at_once}
    found = compile_plan(PLAN, _graph(), params, cluster)
    return simulate(found.program, found.source, cluster).step_s


@cache
def _graph() -> Graph:
    spec = f"hf:{CONFIGS / 'qwen3-30b-a3b.json'},batch={GPUS * MICRO_BATCHES},seq=4096,dtype=bf16"
    return captured(ModelRequest(spec, meta=True), keep=False).graph
