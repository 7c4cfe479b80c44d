"""The table of mixtures in bench/results/splits.md is what the simulator says.

`--update-golden` writes it. Capturing the large models takes a minute: CI leaves it out.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from tests.docs.pages import with_text

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "bench" / "results" / "splits.md"
MIXTRAL, GSHARD = "mixtral:8x7b,batch=64,dtype=bf16", "moe_gpt:70b,batch=256,dtype=bf16"
WAYS = (  # 64 devices: copies of all experts, devices among which these are divided, devices within one
    (MIXTRAL, (8, 8, 1)),
    (MIXTRAL, (16, 4, 1)),
    (MIXTRAL, (4, 8, 2)),
    (GSHARD, (1, 64, 1)),
    (GSHARD, (2, 32, 1)),
    (GSHARD, (8, 8, 1)),
)
TOKEN_BYTES = 4096 * 2
Reports = dict[tuple[str, tuple[int, int, int]], Report]


@pytest.fixture(scope="module")
def reports(graph_of: Callable[[str], Any]) -> Reports:
    cluster, plan, found = load_cluster("h100x1024"), ROOT / "examples" / "experts.ssp", {}
    for model, (copies, experts, within) in WAYS:
        compiled = compile_plan(plan, graph_of(model), {"D": copies, "E": experts, "T": within})
        found[model, (copies, experts, within)] = simulate(compiled.program, compiled.source, cluster)
    return found


@pytest.mark.slow
def test_table(reports: Reports, golden: Callable[[Path, str], None]) -> None:
    golden(PAGE, with_text(PAGE.read_text("utf-8"), "table: mixtures", _table(reports)))


@pytest.mark.slow
def test_devices_send_each_token_to_its_experts(reports: Reports) -> None:
    """Twice forward and twice backward in each layer, `top` rows for each token; and counts in front of them."""
    sent = _sent(reports[MIXTRAL, (8, 8, 1)])["all_to_all"]
    tokens, counts = 64 * 4096 // 64, 8 * 64 // 64 * 8
    assert sent == 32 * (4 * 2 * tokens * TOKEN_BYTES + counts)


def _table(reports: Reports) -> str:
    rows = [
        "| model | D x E x T | step ms | tokens GB | weights GB | peak GB | of 79.1 GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for (model, sizes), report in reports.items():
        (device,), sent = report.devices, _sent(report)
        tokens = sent.pop("all_to_all") * (1 - 1 / sizes[1])
        assert device.capacity_bytes
        cells = (
            f"`{model}`",
            " x ".join(map(str, sizes)),
            f"{report.step_s * 1e3:.0f}",
            f"{tokens / 1e9:.2f}",
            f"{sum(sent.values()) / 1e9:.1f}",
            f"{device.peak_bytes / 1e9:.1f}",
            f"{device.peak_bytes / device.capacity_bytes:.0%}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


def _sent(report: Report) -> Counter[str]:
    """Bytes by kind of communication, of one device."""
    (device,) = report.devices
    found = Counter[str]()
    for traffic in report.traffic:
        found[traffic.kind] += traffic.size_bytes // len(device.ranks)
    return found
