"""The figures and pictures of docs/schedules.md, and the rates of bench/results/schedules.md, are what the simulator
finds; `--update-golden` writes them there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import known_clusters, load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.function import Function
from ssdsl.show.charts.gantt import gantt
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.simulate.timeline import Event, EventKind, Stream
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.docs.pages import with_text

ROOT = Path(__file__).parent.parent.parent
PAGE, RESULTS = ROOT / "docs" / "schedules.md", ROOT / "bench" / "results" / "schedules.md"
P, M, V, R = 4, 8, 2, 3
BACKWARD = {
    EventKind.BACKWARD,
    EventKind.WGRAD,
}  # the end of a backward; a block without weights has no other than dgrad

OTHER_TIMES = ((2.0, 2.0, 1.0), (1.0, 2.0, 1.0), (2.0, 1.0, 1.0))
Formula = Callable[[float, float, float], float]


@dataclass(frozen=True)
class Schedule:
    """The bubble in seconds, by F, B and W, and the micro-batches in flight: as text and as number.

    `times` are F, B and W of a device in the picture, `others` more for which the formula holds; a device has so many
    `stages`, which go through so many `passes`. `ends_s` is what all devices together do of a micro-batch.
    """

    bubble: str
    bubble_s: Formula
    in_flight: str
    most: float
    stages: int = 1
    passes: int = 1
    times: tuple[float, float, float] = (1, 1, 1)
    others: tuple[tuple[float, float, float], ...] = OTHER_TIMES
    ends_s: float = 0.0

    def rate(self, forward: float, dgrad: float, wgrad: float) -> float:
        bubble = self.bubble_s(forward, dgrad, wgrad)
        return bubble / (M * (self.passes * forward + dgrad + wgrad + self.ends_s) + bubble)


def _full(forward: float, dgrad: float, wgrad: float) -> float:
    return (P - 1) * (forward + dgrad + wgrad)


FULL = "(p − 1) (F + B + W)"
SCHEDULES = {
    "gpipe": Schedule(FULL, _full, "m", M),
    "one_f_one_b": Schedule(FULL, _full, "p", P),
    "eager_one_f_one_b": Schedule(FULL, _full, "2p − 1", 2 * P - 1),
    "interleaved": Schedule(f"{FULL} / v", lambda *t: _full(*t) / V, "p + (p − 1) / v", P + (P - 1) / V, stages=V),
    "zb_h1": Schedule("(p − 1) (F + B − W)", lambda f, b, w: (P - 1) * (f + b - w), "p", P),
    "zb_h2": Schedule("(p − 1) (F + B − 2W)", lambda f, b, w: (P - 1) * (f + b - 2 * w), "2p − 1", 2 * P - 1),
    "zb_v": Schedule("(p − 1) (max(F, B) − W)", lambda f, b, w: (P - 1) * (max(f, b) - w), "p", P, stages=2),
    "dual_pipe_v": Schedule(
        "(p − 1) (F + B − W) / 2",
        lambda f, b, w: (P - 1) * (f + b - w) / 2,
        "p + 1 / 2",
        P + 0.5,
        stages=2,
        others=((2, 2, 1), (2, 1, 1)),
    ),
    "v_half": Schedule(
        "(3p − 3) U / 2", lambda u, *_: 3 * (P - 1) * u / 2, "⌊p / 2⌋ + 1", P // 2 + 1, stages=2, others=()
    ),
    "v_min": Schedule(
        "(4p − 5) U / 2", lambda u, *_: (4 * P - 5) * u / 2, "⌈(p + 2) / 3⌉", (P + 4) // 3, stages=2, others=()
    ),
    "three_f_one_b": Schedule(FULL, _full, "p", P, passes=R, times=(1, 3, 0)),
    "interlaced": Schedule(FULL, _full, "2p − 1", 2 * P - 1, ends_s=1.0),
}

PUBLISHED = (
    (8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    (16, 64, (11.307, 11.254, 8.101, 0.379), (0.2082, 0.1088, 0.0516)),
    (32, 256, (10.402, 10.248, 7.698, 0.460), (0.1352, 0.0594, 0.0257)),
)


@pytest.fixture(scope="module")
def simulated(blocks: list[Any], graph_of: Callable[[str], Any]) -> Callable[..., Report]:
    """A step of one of the page's plans, which is compiled once; by the times of its picture, or others."""
    plans = {b.name: b for b in blocks if b.page == PAGE.name}

    @cache
    def compiled(name: str) -> Compiled:
        return _compile(f"{name}.ssp", plans[name].text, graph_of(plans[name].model))

    @cache
    def report(name: str, times: tuple[float, float, float] | None = None) -> Report:
        schedule = SCHEDULES[name]
        forward, dgrad, wgrad = (t / schedule.stages for t in times or schedule.times)
        ends = [f"{f.name}.{phase}" for f in compiled(name).program.functions if _is_end(f) for phase in ("fwd", "bwd")]
        return _simulate(
            compiled(name), Times(forward, dgrad, wgrad, tasks={e: schedule.ends_s / len(ends) for e in ends})
        )

    return report


def test_page(simulated: Callable[..., Report], golden: Callable[[Path, str], None]) -> None:
    text = PAGE.read_text("utf-8")
    for name in (n for n in SCHEDULES if n != "eager_one_f_one_b"):  # 1F1B's, with more forwards in front
        text = with_text(text, f"picture: {name}", f"```text\n{_picture(simulated(name))}```\n")
    golden(PAGE, with_text(text, "table: figures", _figures(simulated)))
    golden(RESULTS, with_text(RESULTS.read_text("utf-8"), "table: published", _published()))


@pytest.mark.parametrize("name", SCHEDULES)
def test_formulas(name: str, simulated: Callable[..., Report]) -> None:
    schedule = SCHEDULES[name]
    for times in (schedule.times, *schedule.others):
        assert simulated(name, times).bubble == pytest.approx(schedule.rate(*times), abs=1e-9)
    assert _in_flight(simulated(name), schedule) == pytest.approx(schedule.most)


@pytest.mark.parametrize(
    ("p", "m", "times_ms", "rates"), [PUBLISHED[0], pytest.param(*PUBLISHED[1], marks=pytest.mark.slow)]
)
def test_published_rates(
    p: int,
    m: int,
    times_ms: tuple[float, ...],
    rates: tuple[float, ...],
    blocks: list[Any],
    graph_of: Callable[[str], Any],
) -> None:
    graph = graph_of(f"gpt:tiny,layers={p},batch={m}")
    stages = next(b.text for b in blocks if b.name == "stages")
    stages = stages.replace("S = 4", f"S = {p}").replace("M = 8", f"M = {m}")
    for name, rate in zip(("one_f_one_b", "zb_h1", "zb_h2"), rates, strict=True):
        compiled = _compile(name, f"use pipeline: {name}\n{stages}{name}(stage, M)\n", graph)
        assert round(_simulate(compiled, Times(*(t / 1e3 for t in times_ms))).bubble, 4) == rate


def _is_end(function: Function) -> bool:
    """Whether all devices together run it."""
    return not function.submesh.fixed


def _compile(name: str, text: str, graph: Any) -> Compiled:
    return compile_source(Source(name, text), graph, {}, None)


def _simulate(compiled: Compiled, times: Times) -> Report:
    program = compiled.program
    return simulate(program, compiled.source, _cluster(compiled.plan.devices), Measured(program, times))


def _cluster(devices: int) -> Cluster:
    """The laptop of the pictures, or one that has so many devices."""
    laptop, *others = (load_cluster(name) for name in ("laptop", *known_clusters()))
    return laptop if devices <= 4 else next(c for c in others if c.size >= devices)


def _picture(report: Report) -> str:
    out = StringIO()
    Console(file=out, width=100, color_system=None).print(gantt(report.timeline, 100))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _figures(simulated: Callable[..., Report]) -> str:
    """The rows; activations are those of the fullest device, over 1F1B's."""
    rows = [
        "| schedule | bubble b | formula | simulated | in flight | formula | simulated | activations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    unit = _activations(simulated("one_f_one_b"))
    for name, s in SCHEDULES.items():
        report = simulated(name)
        times = f"{_activations(report) / unit:.2f}" if s.passes == 1 else "–"
        flying = f"{s.in_flight} | {s.most:g} | {_in_flight(report, s):g}"
        rows.append(
            f"| [`{name}`](#{name}) | {s.bubble} | {s.rate(*s.times):.4f} | {report.bubble:.4f} | {flying} | {times} |"
        )
    return "".join(f"{row}\n" for row in rows)


def _activations(report: Report) -> int:
    return max(dict(d.peak_parts).get("activations", 0) for d in report.devices)


def _in_flight(report: Report, schedule: Schedule) -> float:
    """Micro-batches between their forward and the end of their backward, on the fullest device.

    Of several passes the last alone has a backward.
    """
    fullest = 0.0
    rows = range(len(report.timeline.rows))
    names = [{e.name for e in report.timeline.events if e.row == row} for row in rows]
    ends = set.intersection(*names)
    for row in rows:
        changes: list[tuple[float, int, int]] = []
        for m in range(M):
            events = [e for e in report.timeline.events if e.row == row and _is_of(e, m) and e.name not in ends]
            begun = sorted(e.start_s for e in events if e.kind is EventKind.FORWARD)
            ended = [e.end_s for e in events if e.kind in BACKWARD]
            assert len(ended) == schedule.stages
            changes += [(time, 1, 1) for time in begun[-schedule.stages :]] + [(time, 0, -1) for time in ended]
        alive = 0
        for _, _, change in sorted(changes):
            alive += change
            fullest = max(fullest, alive / schedule.stages)
    return fullest


def _is_of(event: Event, m: int) -> bool:
    """A task of a micro-batch that takes time: what no `order` names takes none."""
    return event.stream is Stream.COMPUTE and event.coordinate == (("m", m),) and event.end_s > event.start_s


def _published() -> str:
    head = "| p | m | TF | TB | TW | Tcomm | 1F1B: paper | here | ZB-H1: paper | here | ZB-H2: paper | here |"
    rows = [head, "|---" * 12 + "|"]
    for p, m, times, rates in PUBLISHED:
        numbers = [*(f"{t:.3f}" for t in times), *(f"{r:.4f}" for r in rates for _ in "ph")]
        rows.append(f"| {p} | {m} | {' | '.join(numbers)} |")
    return "".join(f"{row}\n" for row in rows)
