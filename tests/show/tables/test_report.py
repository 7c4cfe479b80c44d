"""The figures of a simulated step: tables that fit, and JSON that keeps its keys."""

import json
import re
from pathlib import Path

import pytest

from ssdsl.record import replace
from ssdsl.show.pattern import ranks
from ssdsl.show.tables.report import devices_view, flops, report_json, report_views, summary_view, traffic_view
from ssdsl.show.view import as_json, table
from tests.show.charts.test_gantt import printed, shows_all
from tests.show.timelines import one_f_one_b, repeated, report_of, zb_h1

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "json.md").read_text("utf-8")


def test_the_tables() -> None:
    report = report_of(one_f_one_b(4, 8))
    summary = as_json(summary_view(report))[0]
    assert report.model_flops == 3e15 and report.flops_per_s == pytest.approx(3e15 / report.step_s / 8)
    assert summary["device_flops_per_s"] == f"{flops(report.flops_per_s or 0)}/s"
    assert summary["devices"] == 8 and summary["peak_memory"] == 39_600_000_000
    first = as_json(devices_view(report))[0]
    assert first["ranks"] == "0-1" and first["busy"] == pytest.approx(0.116) and first["full"] == 0.495
    assert first["communication"] == first["exposed"] == pytest.approx(8 * 0.0045 + 0.004)
    assert [row[3] for row in traffic_view(report).rows] == [2_000_000_000, 7 * 52_428_800]


def test_what_is_not_known_is_empty() -> None:
    report = report_of(one_f_one_b(2, 2))
    devices = tuple(replace(d, capacity_bytes=None) for d in report.devices)
    bare = replace(report, devices=devices, mfu=None, traffic=())
    assert as_json(summary_view(bare))[0]["MFU"] is None and as_json(summary_view(bare))[0]["of_capacity"] is None
    assert "nothing is communicated" in printed(table(traffic_view(bare), 80), 80)
    assert report_json(bare)["mfu"] is None and report_json(bare)["devices"][0]["capacity_share"] is None


def test_too_little_memory_is_said() -> None:
    report = report_of(one_f_one_b(4, 8))
    small = tuple(replace(d, capacity_bytes=30_000_000_000) for d in report.devices)
    assert devices_view(replace(report, devices=small)).notes[-1] == "out of memory: 2 of 4 roles"


def test_equal_roles_are_one_row() -> None:
    rows = devices_view(report_of(repeated(one_f_one_b(4, 8), 8))).rows
    assert [row[:2] for row in rows[:2]] == [("gpus_dp0_pp0 … x8", "16 in 0-57"), ("gpus_dp0_pp1 … x8", "16 in 2-59")]


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits(width: int) -> None:
    for report in (report_of(zb_h1(4, 8)), report_of(repeated(one_f_one_b(8, 16), 16))):
        for view in report_views(report):
            assert shows_all(view, width)


def test_json_has_all_figures() -> None:
    report = report_of(zb_h1(4, 8))
    found = json.loads(json.dumps(report_json(report), allow_nan=False))
    keys = "version title plan cluster step_s bubble communication_s exposed_s model_flops mfu device_flops_per_s fuse"
    assert list(found) == [*keys.split(), "peak_bytes", "fits", "price", "currency", "measured", "devices", "traffic"]
    assert (
        list(found["devices"][0])
        == (
            "role device ranks span_s compute_s optimizer_s busy_s communication_s exposed_s exposed_parts idle_share "
            "peak_bytes peak_parts capacity_bytes capacity_share over_bytes host_bytes host_capacity_bytes"
        ).split()
    )
    assert found["devices"][1]["ranks"] == [2, 3] and sum(found["devices"][0]["peak_parts"].values()) == 39_600_000_000
    assert found["traffic"][1] == {"level": "network", "kind": "send", "calls": 14, "bytes": 7 * 52_428_800}
    tables = PAGE[PAGE.index("## A simulated step") : PAGE.index("In `exposed`")]
    keys_there = set(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE))
    assert {*found, *found["devices"][0], *found["traffic"][0]} == keys_there - {"exposed", "lines"}


def test_operations_and_ranks_are_short() -> None:
    assert [flops(v) for v in (12, 3.2e15, 4.4e18, 4.4e21)] == ["12 FLOP", "3.2 PFLOP", "4.4 EFLOP", "4400 EFLOP"]
    assert ranks((3,)) == "3" and ranks((8, 9, 0, 1, 2)) == "0-2, 8-9" and ranks((0, 2, 4)) == "3 in 0-4"
    assert ranks(()) == ""
