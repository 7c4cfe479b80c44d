"""Two plans side by side: what changes, by how much, and what only one of them has."""

import json

import pytest

from ssdsl.record import replace
from ssdsl.show.tables.difference import devices_view, difference_json, difference_views, summary_view, traffic_view
from ssdsl.simulate.report import Traffic
from tests.show.charts.test_gantt import shows_all
from tests.show.timelines import one_f_one_b, repeated, report_of, zb_h1

BEFORE, AFTER = report_of(one_f_one_b(4, 8)), report_of(zb_h1(4, 8), 1_000_000_000)
WIDER = report_of(repeated(zb_h1(6, 8), 8))
NAMES = ("1f1b.ssp", "zb_h1.ssp")


def test_the_step() -> None:
    rows = {row[0]: row[1:] for row in summary_view(BEFORE, AFTER, NAMES).rows}
    assert rows["step"] == ("226 ms", "186 ms", "-40 ms", "-17.7%")
    assert rows["bubble"] == ("49.5%", "31.0%", "-18.5 points", "")
    assert rows["MFU"] == ("41.0%", "41.0%", "same", "")
    assert rows["traffic of all devices"] == ("2.37 GB", "1.37 GB", "-1 GB", "-42.2%")


def test_roles_of_both() -> None:
    rows = devices_view(BEFORE, AFTER, NAMES).rows
    assert rows[0] == ("gpus_pp0", "busy", "116 ms", "128 ms", "+12 ms", "+10.3%")
    assert rows[15] == ("", "peak memory", "23.7 GB", "39.6 GB", "+15.9 GB", "+67.1%")


def test_roles_of_one() -> None:
    views = difference_views(BEFORE, WIDER, ("a/long/path/to/pipeline.ssp", "b"))
    assert [view.title for view in views] == ["A to B", "traffic of all devices in a step"]
    assert views[0].notes == (
        "A: a/long/path/to/pipeline.ssp",
        "B: b",
        "only in A: gpus_pp0, gpus_pp1, gpus_pp2, gpus_pp3",
        "only in B: gpus_dp0_pp0, gpus_dp0_pp1, gpus_dp0_pp2, gpus_dp0_pp3 and 44 more",
    )
    longer = report_of(one_f_one_b(6, 8))
    summary, devices, _ = difference_views(BEFORE, longer, NAMES)
    assert summary.notes == ("only in zb_h1.ssp: gpus_pp4, gpus_pp5",) and len(devices.rows) == 4 * 4


def test_traffic_of_one() -> None:
    more = replace(AFTER, traffic=(*AFTER.traffic, Traffic("network", "all_gather", 2, 500)), mfu=None)
    rows = traffic_view(BEFORE, more, NAMES).rows
    assert rows[0] == ("nvlink", "all_reduce", "2 GB", "1 GB", "-1 GB", "-50.0%")
    assert rows[2] == ("network", "all_gather", "0 B", "500 B", "+500 B", "")
    assert summary_view(BEFORE, more, NAMES).rows[4] == ("MFU", "41.0%", "", "", "")


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits(width: int) -> None:
    for after in (AFTER, WIDER):
        for view in difference_views(BEFORE, after, NAMES):
            assert shows_all(view, width)


def test_json() -> None:
    found = json.loads(json.dumps(difference_json(BEFORE, AFTER, NAMES), allow_nan=False))
    keys = "before after figures devices only_before only_after traffic"
    assert list(found) == keys.split() and (found["before"], found["after"]) == NAMES
    assert found["figures"]["step_s"] == {
        "before": pytest.approx(0.226),
        "after": pytest.approx(0.186),
        "change": pytest.approx(-0.04),
        "relative": pytest.approx(-0.04 / 0.226),
    }
    assert found["devices"][3]["peak_bytes"]["change"] == 15_900_000_000
    assert found["traffic"][0]["bytes"]["relative"] == -0.5 and found["traffic"][0]["calls"]["change"] == 0
    named = [*found, *found["figures"], *found["devices"][0], *found["traffic"][0]]
    assert all(f"`{key}`" in (difference_json.__doc__ or "") for key in named)
    other = difference_json(BEFORE, WIDER, NAMES)
    assert other["devices"] == [] and len(other["only_before"]) == 4 and len(other["only_after"]) == 48
