"""The schedule in the terminal: letters say it all, in any width, and what is left out is said."""

import re
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from ssdsl.record import replace
from ssdsl.show.charts.gantt import gantt, shortened
from ssdsl.show.view import View, table
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline, TimelineRow
from tests.show.timelines import one_f_one_b, repeated, zb_h1

ONE_F_ONE_B = """\
1F1B, 2 stages  step 88 ms
gpus_pp0 F0──~F1──~···········B0──────~~F2──~B1─────~~·······B2─────~~R~~~O─────
gpus_pp1 ······F0─~B0──────~~F1──~B1─────~~~·F2──~B2─────~~~R~~···········O─────
         ┬───────┬───────┬───────┬───────┬───────┬───────┬───────┬────────┬─────
      ms 0       10      20      30      40      50      60      70       80
F forward  B backward  R reduce gradients  O optimizer  ~ exposed  · idle
order: all 12 tasks from the plan
"""


def printed(renderable: RenderableType, width: int, colours: bool = False) -> str:
    system = "truecolor" if colours else None
    console = Console(file=StringIO(), width=width, color_system=system, force_terminal=colours)  # type: ignore[arg-type]
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def shows_all(view: View, width: int) -> bool:
    """Whether the table loses no character to this width."""
    narrow, wide = (sorted(re.sub(r"[─\s]", "", printed(table(view, w), w))) for w in (width, 400))
    return narrow == wide


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))[len(name) + 1 :]


def test_a_step_in_letters() -> None:
    assert printed(gantt(one_f_one_b(2, 3), 80), 80) == ONE_F_ONE_B


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("transfers", [False, True])
@pytest.mark.parametrize("timeline", [one_f_one_b(4, 8), zb_h1(4, 8), repeated(zb_h1(8, 64), 8)], ids=lambda t: t.title)
def test_no_line_is_wider(timeline: Timeline, width: int, transfers: bool) -> None:
    text = printed(gantt(timeline, width, transfers), width + 20)
    assert all(len(line) <= width for line in text.splitlines())


def test_tasks_in_their_order() -> None:
    text = printed(gantt(zb_h1(4, 8), 200), 200)
    assert re.findall(r"[A-Z]\d?", row(text, "gpus_pp3").upper()) == (
        "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7 R O".split()
    )


def test_what_the_compiler_placed_is_lower_case() -> None:
    text = printed(gantt(zb_h1(4, 8), 120), 120)
    assert "W4──·B5─~w5─·" in row(text, "gpus_pp0") and "O" in row(text, "gpus_pp0")
    assert "order: 84 of 96 tasks from the plan, 12 completed by the compiler (lower case): W of every role" in text
    one = zb_h1(4, 8)
    events = tuple(replace(e, from_plan=e.from_plan or e.row != 2) for e in one.events)
    assert "3 completed by the compiler (lower case): W of gpus_pp2\n" in printed(
        gantt(replace(one, events=events), 120), 120
    )
    assert "\x1b[4;" in printed(gantt(one, 120), 120, colours=True)  # underlined


def test_colours_change_no_letter() -> None:
    timeline = zb_h1(4, 8)
    coloured = printed(gantt(timeline, 80, transfers=True), 80, colours=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == printed(gantt(timeline, 80, transfers=True), 80)


def test_transfers_where_they_are_sent_and_received() -> None:
    text = printed(gantt(one_f_one_b(2, 1), 120, transfers=True), 120).splitlines()
    assert text[2].split() == [">0─", "<0─"] and text[4].split() == ["<0─", ">0─"]
    assert text[2].index(">") == text[4].index("<")
    assert "> sent  < received" in printed(gantt(one_f_one_b(2, 1), 120, transfers=True), 120)


def test_equal_rows_are_one() -> None:
    text = printed(gantt(repeated(one_f_one_b(4, 8), 16), 100), 100)
    assert [line.split()[:3] for line in text.splitlines()[1:5]] == [[f"gpus_dp0_pp{s}", "…", "x16"] for s in range(4)]
    later = repeated(one_f_one_b(4, 8), 2)
    other = replace(later.events[0], end_s=later.events[0].end_s + 1e-4)
    text = printed(gantt(replace(later, events=(other, *later.events[1:])), 100), 100)
    assert "gpus_dp0_pp0 " in text and "gpus_dp1_pp0 " in text and "gpus_dp0_pp1 … x2" in text


def test_a_dense_step_says_so_and_its_window_shows_numbers() -> None:
    timeline = one_f_one_b(4, 64)
    dense = " ".join(printed(gantt(timeline, 80), 80).split())
    found = re.search(r"250 of 520 are not drawn; a window of (\d+) ms", dense)
    assert found
    width = int(found[1]) / 1e3
    text = printed(gantt(timeline, 80, window=(0.4, 0.4 + width)), 80)
    assert "dense" not in text and "400 ms to 613 ms of it (16%)" in text
    assert {"F", "B"} == set(re.findall(r"[A-Z]", row(text, "gpus_pp1"))) and "B17" in text


@pytest.mark.parametrize("window", [(1.0, 0.5), (5.0, 6.0), (-2.0, -1.0)])
def test_a_window_beside_the_step(window: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="shows nothing"):
        gantt(one_f_one_b(2, 3), 80, window=window)


def test_the_largest_share_of_a_cell() -> None:
    def task(kind: EventKind, start: float, end: float) -> Event:
        return Event(0, Stream.COMPUTE, kind, start, end, "x", (("chunk", 0), ("m", 7)))

    events = task(EventKind.FORWARD, 0.0, 0.4), task(EventKind.BACKWARD, 0.4, 1.0), task(EventKind.FORWARD, 1.0, 1.4)
    timeline = Timeline("t", "p", "", 16.0, (TimelineRow("a", (0,)),), events)
    assert row(printed(gantt(timeline, 18), 80), "a") == "B" + "·" * 15  # the third fills less than half a cell
    assert "F7" in row(printed(gantt(timeline, 100), 100), "a")  # the index called m, not the first


def test_nothing() -> None:
    assert "idle" in printed(gantt(Timeline("nothing", "", "", 0.0, (), ()), 80), 80)


def test_shortened_in_the_middle() -> None:
    assert shortened("gpus_dp0_pp0", 8) == "gpus…pp0" and shortened("gpus", 8) == "gpus"
