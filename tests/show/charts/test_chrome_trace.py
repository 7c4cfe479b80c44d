"""Chrome's trace: what Perfetto needs of it, for one timeline and for several."""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from ssdsl.show.charts.chrome_trace import chrome_trace
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline, TimelineRow
from tests.show.timelines import one_f_one_b, repeated, zb_h1

CASES = {
    "one": (one_f_one_b(4, 8),),
    "halves": (zb_h1(4, 8, {EventKind.FORWARD: 1 / 3e3, EventKind.DGRAD: 1 / 7e3, EventKind.WGRAD: 1 / 9e3}),),
    "two": (zb_h1(4, 8), one_f_one_b(4, 8)),
    "many rows": (repeated(one_f_one_b(4, 8), 8),),
    "nothing": (Timeline("nothing", "", "", 0.0, (), ()),),
}
case = pytest.mark.parametrize("timelines", CASES.values(), ids=CASES)


def events(*timelines: Timeline) -> dict[str, list[dict[str, Any]]]:
    """The trace's events by phase, after a trip through JSON."""
    trace = json.loads(json.dumps(chrome_trace(*timelines), allow_nan=False))
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        found[event["ph"]].append(event)
    return found


@case
def test_every_event_is_complete(timelines: tuple[Timeline, ...]) -> None:
    found = events(*timelines)
    assert set(found) <= {"M", "X", "s", "f", "C"}
    assert len(found["X"]) == sum(len(t.events) for t in timelines)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] > 0 and e["tid"] > 0 and e["name"] for e in found["X"])


@case
def test_processes_and_threads_have_names(timelines: tuple[Timeline, ...]) -> None:
    found = events(*timelines)
    names = Counter((e["name"], e["pid"], e["tid"]) for e in found["M"])
    assert set(names.values()) <= {1}
    for event in found["X"] + found["C"]:
        assert names["process_name", event["pid"], 0] and names["process_sort_index", event["pid"], 0]
    for event in found["X"] + found["s"] + found["f"]:
        assert names["thread_name", event["pid"], event["tid"]]
        assert names["thread_sort_index", event["pid"], event["tid"]]


@case
def test_events_of_a_thread_do_not_overlap(timelines: tuple[Timeline, ...]) -> None:
    threads = defaultdict(list)
    for e in events(*timelines)["X"]:
        start = round(e["ts"] * 1000)
        threads[e["pid"], e["tid"]].append((start, start + round(e["dur"] * 1000)))
    for times in threads.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


@case
def test_arrows_start_and_end_inside_events(timelines: tuple[Timeline, ...]) -> None:
    found = events(*timelines)
    starts, ends = ({e["id"]: e for e in found[phase]} for phase in "sf")
    assert len(starts) == len(found["s"]) == len(found["f"]) == sum(len(t.flows) for t in timelines)
    assert starts.keys() == ends.keys()
    assert all(e["bp"] == "e" and e["ts"] >= starts[e["id"]]["ts"] for e in ends.values())
    for arrow in found["s"] + found["f"]:
        same = [e for e in found["X"] if (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])]
        assert any(e["ts"] <= arrow["ts"] < e["ts"] + e["dur"] and e["cat"] == "transfer" for e in same)


def test_what_an_event_says() -> None:
    found = events(zb_h1(2, 2))
    first = found["X"][0]
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == ("F0 h.0 ... h.11", "fwd", 0, 6000)
    assert first["args"] == {"coordinate": {"m": 0}, "lines": [1, 3], "communication_us": 1500, "order": "plan"}
    assert {e["args"]["order"] for e in found["X"] if e["cat"] == "wgrad"} == {"plan", "compiler"}
    assert {e["args"]["bytes"] for e in found["X"] if e["cat"] == "transfer"} == {52_428_800}


def test_memory_is_a_counter_of_its_row() -> None:
    timeline = one_f_one_b(2, 4)
    curve = [e for e in events(timeline)["C"] if e["pid"] == 1]
    assert max(e["args"]["bytes"] for e in curve) == timeline.memory[0].peak_bytes
    assert curve[0]["ts"] == 0 and curve[-1]["ts"] == pytest.approx(timeline.step_s * 1e6)


def test_names_of_processes() -> None:
    def names(*timelines: Timeline) -> list[str]:
        found = [e for e in events(*timelines)["M"] if e["name"] == "process_name"]
        return [e["args"]["name"] for e in sorted(found, key=lambda e: e["pid"])]

    assert names(one_f_one_b(2, 2)) == ["gpus_pp0 (ranks 0-1)", "gpus_pp1 (ranks 2-3)"]
    assert names(one_f_one_b(2, 2), zb_h1(3, 2)) == [
        "1F1B, 2 stages: gpus_pp0 (ranks 0-1)",
        "ZB-H1, 3 stages: gpus_pp0 (ranks 0-1)",
        "1F1B, 2 stages: gpus_pp1 (ranks 2-3)",
        "ZB-H1, 3 stages: gpus_pp1 (ranks 2-3)",
        "ZB-H1, 3 stages: gpus_pp2 (ranks 4-5)",
    ]


def test_what_overlaps_goes_to_another_thread() -> None:
    def send(start: float, end: float) -> Event:
        return Event(0, Stream.TRANSFER, EventKind.TRANSFER, start, end, "send")

    timeline = Timeline("t", "", "", 3.0, (TimelineRow("a", (0,)),), (send(0, 2), send(1, 3), send(2, 3)))
    found = events(timeline)
    assert [e["tid"] - found["X"][0]["tid"] for e in found["X"]] == [0, 1, 0]
    assert [e["args"]["name"] for e in found["M"] if e["name"] == "thread_name"] == ["transfer", "transfer 2"]
