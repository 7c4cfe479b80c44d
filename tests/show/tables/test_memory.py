"""Memory over the step: the peak and its parts, and a curve that loses no peak."""

import pytest

from ssdsl.record import replace
from ssdsl.show.tables.memory import memory_curve, memory_views, parts_view, peaks_view
from ssdsl.simulate.timeline import Memory, Timeline, TimelineRow
from tests.show.charts.test_gantt import printed, shows_all
from tests.show.timelines import one_f_one_b, repeated, zb_h1


def test_peaks_and_parts() -> None:
    timeline = one_f_one_b(4, 8)
    assert peaks_view(timeline).rows[0] == ("gpus_pp0", 2, 39_600_000_000, pytest.approx(0.018), 80_000_000_000, 0.495)
    parts = parts_view(timeline)
    assert [c.name for c in parts.columns] == ["role", "weights", "gradients", "optimizer", "activations"]
    assert sum(v for v in parts.rows[3][1:] if isinstance(v, int)) == timeline.memory[3].peak_bytes
    assert memory_views(replace(timeline, memory=())) == ()


def test_equal_roles_are_one_row() -> None:
    rows = peaks_view(repeated(zb_h1(2, 8), 8)).rows
    assert [row[:2] for row in rows] == [("gpus_dp0_pp0 … x8", 16), ("gpus_dp0_pp1 … x8", 16)]


def test_parts_that_some_have_not() -> None:
    memory = (
        Memory(0, (0.0,), (5,), 0.0, 5, (("weights", 5),)),
        Memory(1, (0.0,), (8,), 0.0, 8, (("activations", 8),), 4),
    )
    timeline = Timeline("t", "", "", 1.0, (TimelineRow("a", (0,)), TimelineRow("b", (1,))), (), (), memory)
    assert parts_view(timeline).rows == (("a", 5, None), ("b", None, 8))
    assert peaks_view(timeline).rows[1][-1] == 2.0
    assert peaks_view(timeline).notes == ("1 of 2 roles need more than their devices have",)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("timeline", [one_f_one_b(4, 8), repeated(zb_h1(8, 16), 8)], ids=lambda t: t.title)
def test_it_fits(timeline: Timeline, width: int) -> None:
    assert all(shows_all(view, width) for view in memory_views(timeline))
    assert all(len(line) <= width for line in printed(memory_curve(timeline, width), width + 20).splitlines())


def test_a_short_peak_is_drawn_and_marked() -> None:
    memory = Memory(0, (0.0, 0.5, 0.5001), (10, 80, 10), 0.5, 80, (("all", 80),), 100)
    timeline = Timeline("t", "", "", 1.0, (TimelineRow("a", (0,)),), (), (), (memory,))
    lines = printed(memory_curve(timeline, 80, 4), 80).splitlines()
    at = lines[1].index("▼")
    assert lines[1][at:] == "▼ 80 B, 80% of 100 B"
    assert [line[at] for line in lines[2:6]] == ["█"] * 4
    assert [line[at - 1] for line in lines[2:6]] == [" ", " ", " ", "▄"]
    assert printed(memory_curve(timeline, 80, 1), 80).splitlines()[2].count("█") == 1


def test_the_peak_at_the_end_has_its_figures_on_the_left() -> None:
    memory = Memory(0, (0.0, 0.99), (10, 80), 0.99, 80, (("all", 80),))
    timeline = Timeline("t", "", "", 1.0, (TimelineRow("a", (0,)),), (), (), (memory,))
    assert printed(memory_curve(timeline, 80), 80).splitlines()[1].endswith("80 B ▼")
