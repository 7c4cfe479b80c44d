"""The HTML timeline in a real browser: it is quiet, marks both ways between events and lines, and stays fluid."""

import itertools
import json
import math
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ssdsl.record import replace
from ssdsl.repl.errors import UnknownCommand
from ssdsl.show.advice.by_line import COLUMNS
from ssdsl.show.advice.exposed import COLUMNS as EXPOSED_COLUMNS
from ssdsl.show.charts.gantt import MARKS
from ssdsl.show.charts.timeline_html import FOLDER, timeline_html
from ssdsl.show.tables.memory import CURVE, TOO_HIGH
from ssdsl.show.tables.sweep_html import sweep_html
from ssdsl.show.view import View
from ssdsl.simulate.timeline import (
    MEMORY_PARTS,
    Event,
    EventKind,
    Memory,
    Stream,
    Timeline,
    TimelineRow,
    TransferArrow,
)
from ssdsl.sketch.setting import Setting
from tests.show.timelines import report_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
in_a_browser = pytest.mark.skipif(
    not (CHROMIUM and CHROMEDRIVER), reason="chromium and chromedriver are not installed, which draw the page"
)
QUIET = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,800 --force-device-scale-factor=1"
)

PLAN = """\
# pipeline.ssp: 1F1B across stages, tensor parallel in a stage. <script>alert("not run")</script>

param T = 2 "tensor-parallel width"
param S = 4 "pipeline stages"
param M = 8 "micro-batches"

mesh gpus(pp = S, tp = T)

split model by batch into m = M
split model by heads into tp  # collectives in every block
split model by ffn into tp

let stage = balance(model, S)
let F(s, m) = stage[s].fwd[m = m]
let B(s, m) = stage[s].bwd[m = m]

assign stage[s] to gpus[pp = s] for s in 0..S

for s in 0..S, m in 0..M:
    order F(s, m + S - s - 1) -> B(s, m) -> F(s, m + S - s)
    order F(s, m) -> F(s, m + 1)
    order B(s, m) -> B(s, m + 1)
"""
FORWARD_LINES = (10, 11, 13, 17, 20, 21)
BACKWARD_LINES = (10, 11, 13, 17, 20, 22)
SPLIT_LINES = (9, 17)
FORWARD_S, BACKWARD_S, TRANSFER_S, OPTIMIZER_S = 6.1e-3, 12.7e-3, 1.4e-3, 9e-3


def one_f_one_b(stages: int, micro_batches: int) -> Timeline:
    """A 1F1B step with transfers between the stages, and an optimizer at its end."""
    events: list[Event] = []
    flows: list[tuple[Event, Event]] = []
    free = [0.0] * stages
    arrived: dict[tuple[EventKind, int, int], float] = {}
    queues = [_order(stages - s, micro_batches) for s in range(stages)]
    while any(queues):
        for s, queue in enumerate(queues):
            while queue and _ready(arrived, queue[0], s, stages):
                kind, m = queue.pop(0)
                start = max(free[s], arrived.get((kind, s, m), 0.0))
                event = _task(kind, s, m, start)
                events.append(event)
                free[s] = event.end_s
                after = s + (1 if kind is EventKind.FORWARD else -1)
                if kind is EventKind.FORWARD and s == stages - 1:
                    arrived[EventKind.BACKWARD, s, m] = event.end_s
                elif 0 <= after < stages:
                    sent, received = _transfer(event, after)
                    events += sent, received
                    flows.append((sent, received))
                    arrived[kind, after, m] = received.end_s
    end = max(free)
    for s in range(stages):
        events.append(Event(s, Stream.COMPUTE, EventKind.REDUCE, free[s], free[s] + 4e-3, "gradients", (), 4e-3))
        update = Event(
            s, Stream.COMPUTE, EventKind.OPTIMIZER, end + 4e-3, end + 4e-3 + OPTIMIZER_S, "AdamW", from_plan=False
        )
        events.append(update)
    events.sort(key=lambda event: event.start_s)
    numbers = {event: number for number, event in enumerate(events)}
    return Timeline(
        title=f"gpt2-xl · 1F1B on {stages * 2} × H100",
        plan="pipeline.ssp",
        text=PLAN,
        step_s=end + 4e-3 + OPTIMIZER_S,
        rows=tuple(TimelineRow(f"stage {s}", (2 * s, 2 * s + 1), "H100 80GB") for s in range(stages)),
        events=tuple(events),
        flows=tuple(TransferArrow(numbers[source], numbers[target]) for source, target in flows),
        memory=tuple(_memory(s, [e for e in events if e.row == s]) for s in range(stages)),
    )


def _order(warm_up: int, micro_batches: int) -> list[tuple[EventKind, int]]:
    first = min(warm_up, micro_batches)
    order = [(EventKind.FORWARD, m) for m in range(first)]
    for m in range(micro_batches):
        order.append((EventKind.BACKWARD, m))
        if first + m < micro_batches:
            order.append((EventKind.FORWARD, first + m))
    return order


def _ready(
    arrived: dict[tuple[EventKind, int, int], float], task: tuple[EventKind, int], stage: int, stages: int
) -> bool:
    kind, m = task
    return (kind is EventKind.FORWARD and stage == 0) or (kind, stage, m) in arrived


def _task(kind: EventKind, stage: int, m: int, start: float) -> Event:
    time, lines = (FORWARD_S, FORWARD_LINES) if kind is EventKind.FORWARD else (BACKWARD_S, BACKWARD_LINES)
    name = f"h.{12 * stage} … h.{12 * stage + 11}"
    return Event(stage, Stream.COMPUTE, kind, start, start + time, name, (("m", m),), 0.16 * time, 0, lines)


def _transfer(task: Event, target: int) -> tuple[Event, Event]:
    start = task.end_s
    name = "activations" if task.kind is EventKind.FORWARD else "gradients of activations"

    def at(row: int, verb: str) -> Event:
        end = start + TRANSFER_S
        words = f"{verb} {name}"
        return Event(
            row, Stream.TRANSFER, EventKind.TRANSFER, start, end, words, task.coordinate, 0.0, 52_428_800, SPLIT_LINES
        )

    return at(task.row, "send"), at(target, "receive")


def _memory(row: int, events: list[Event]) -> Memory:
    weights, one = 18_400_000_000, 5_300_000_000
    changes = [(e.start_s, one) for e in events if e.kind is EventKind.FORWARD]
    changes += [(e.end_s, -one) for e in events if e.kind is EventKind.BACKWARD]
    sizes, now = {0.0: weights}, weights
    for time, change in sorted(changes):
        sizes[time] = now = now + change
    peak = max(sizes.values())
    parts = (("weights", 4_600_000_000), ("gradients", 4_600_000_000), ("optimizer", 9_200_000_000))
    held = *((0.0, size, part) for part, size in parts), *((t, change, "activations") for t, change in sorted(changes))
    parts += (("activations", peak - weights),)
    peak_s = next(time for time, size in sizes.items() if size == peak)
    return Memory(row, tuple(sizes), tuple(sizes.values()), peak_s, peak, parts, 80_000_000_000, changes=held)


# ---- without a browser -----------------------------------------------------------------------------------------


def test_the_page_stands_alone() -> None:
    page = timeline_html(one_f_one_b(4, 8))
    assert not re.search(r"""\b(src|href|action)=(?!["']?data:)|url\(|@import|https?:""", page)
    assert page.count("</script>") == 2 and "<script>alert" not in page
    assert "default-src 'none'" in page and "{{" not in page


def test_hostile_texts_stay_data() -> None:
    text = "</script><script>window.hacked = 1</script><!-- {{script}} \u2028"
    page = timeline_html(Timeline(text, text, text, 1.0, (TimelineRow(text, (0,), text),), ()))
    assert page.count("</script>") == 2 and page.count("<!--") == 0
    found = re.search(r'id="timeline">(.*?)</script>', page, re.DOTALL)
    assert found and json.loads(found[1])["text"] == text


def test_ranks_as_ranges() -> None:
    page = timeline_html(Timeline("t", "p", "", 1.0, (TimelineRow("r", (0, 1, 2, 8, 10, 11)),), ()))
    assert '"ranks":"0–2, 8, 10–11"' in page


HOSTILE = "<img src=x onerror='window.hacked = 1'>"
BY_LINE = View(
    "by line",
    COLUMNS,
    (
        ("pipeline.ssp:10: split model by heads into tp", 30_000_000_000, 0.6, 0.0251, 0.125),
        ("other.ssp:9: split model by ffn into tp", 15_000_000_000, 0.3, 0.0, 0.0),
        (HOSTILE, 5_000_000_000, 0.1, 0.0, 0.0),
    ),
    ("a note",),
)


def test_figures_by_line_are_of_the_lines_of_this_plan() -> None:
    """A plan may be given by its path, and use statements of other files."""
    for plan in ("pipeline.ssp", "examples/pipeline.ssp"):
        page = timeline_html(replace(one_f_one_b(4, 8), plan=plan), BY_LINE)
        found = re.search(r'id="timeline">(.*?)</script>', page, re.DOTALL)
        assert found
        rows = json.loads(found[1])["byLine"]["rows"]
        assert [row["line"] for row in rows] == [10, 0, 0]
        assert [row["statement"] for row in rows] == ["split model by heads into tp", BY_LINE.rows[1][0], HOSTILE]
        assert [row["peak_share"] for row in rows] == [0.6, 0.3, 0.1]


LEAST_DISTANCE = 18.0  # between two colours of a legend; 2.3 can just be told apart side by side (CIE 1976)


def _lab(colour: str) -> tuple[float, float, float]:
    """A colour in CIELAB, where distances are those that eyes see."""
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _colours(is_dark: bool) -> dict[str, str]:
    light, _, dark = (FOLDER / "colours.css").read_text("utf-8").partition("@media")
    return dict(re.findall(r"--([\w-]+): (#\w{6});", dark if is_dark else light))


def _alike(colours: dict[str, str]) -> dict[tuple[str, str], float]:
    """The pairs of colours that are not told apart, with their distances."""
    pairs = itertools.combinations(colours, 2)
    distances = {(a, b): math.dist(_lab(colours[a]), _lab(colours[b])) for a, b in pairs}
    return {pair: d for pair, d in distances.items() if d < LEAST_DISTANCE}


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_colours_of_the_legends_are_told_apart(is_dark: bool) -> None:
    """Those of events, of the parts of memory, of its curve and of the ground."""
    names = ["panel", "ink", *EventKind, *(f"part-{part}" for part in MEMORY_PARTS)]
    assert _alike({name: _colours(is_dark)[name] for name in names}) == {}


def test_colours_of_the_terminal_are_those_of_the_page_and_told_apart() -> None:
    found = _colours(is_dark=True)
    assert {kind: mark.style for kind, mark in MARKS.items()} == {
        kind: f"{found[f'{kind}-ink']} on {found[kind]}" for kind in EventKind
    }
    assert _alike({**{kind: found[kind] for kind in EventKind}, "memory that is too high": TOO_HIGH}) == {}
    assert CURVE == "", "memory has no colour of an event"


def test_the_parts_of_memory_add_up() -> None:
    """Each part is written where it changes; parts that a row does not have are left out."""
    page = timeline_html(one_f_one_b(4, 8))
    found = re.search(r'id="timeline">(.*?)</script>', page, re.DOTALL)
    assert found
    for memory in json.loads(found[1])["memory"]:
        names = [name for name, _, _ in memory["changes"]]
        assert names == ["weights", "gradients", "optimizer", "activations"]
        held = dict.fromkeys(names, 0)
        for number, total in enumerate(memory["bytes"]):
            for name, at, sizes in memory["changes"]:
                held[name] = dict(zip(at, sizes, strict=True)).get(number, held[name])
            assert sum(held.values()) == total


# ---- in a browser ----------------------------------------------------------------------------------------------


class Page:
    """A page in the browser."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        driver.get(path.as_uri())

    def __call__(self, expression: str) -> Any:
        return self.driver.execute_script(f"return window.ssdslTimeline.{expression}")

    def point_at(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        body = self.driver.find_element(By.TAG_NAME, "html")
        box = self.driver.execute_script(
            "const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", body
        )
        ActionChains(self.driver).move_to_element_with_offset(
            body, round(x - box[0] / 2), round(y - box[1] / 2)
        ).perform()

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*QUIET.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(CHROMEDRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def small(driver: Any, tmp_path: Path) -> tuple[Page, Timeline]:
    timeline = one_f_one_b(4, 8)
    path = tmp_path / "small.html"
    path.write_text(timeline_html(timeline), "utf-8")
    return Page(driver, path), timeline


def _requests(driver: Any) -> list[str]:
    """The addresses that pages asked for since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


WRITTEN = """
const draw = CanvasRenderingContext2D.prototype.fillText;
const texts = [];
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  texts.push(text);
  return draw.call(this, text, ...rest);
};
window.ssdslTimeline.draw();
CanvasRenderingContext2D.prototype.fillText = draw;
return texts;
"""


@in_a_browser
@pytest.mark.parametrize(("micro_batches", "is_labelled"), [(12, True), (200, False)])
def test_labels_have_their_numbers_or_are_left_out(
    driver: Any, tmp_path: Path, micro_batches: int, is_labelled: bool
) -> None:
    path = tmp_path / "page.html"
    path.write_text(timeline_html(one_f_one_b(4, micro_batches)), "utf-8")
    Page(driver, path)
    written = driver.execute_script(WRITTEN)
    assert "·" not in written
    numbers = [text for text in written if re.fullmatch(r"[FB]?\d\d", text)]
    assert (len(numbers) == 4 * 2 * 2) is is_labelled  # in each row, forward and backward: 10 and 11


@in_a_browser
def test_no_errors_and_no_network(driver: Any, tmp_path: Path) -> None:
    _requests(driver)
    path = tmp_path / "page.html"
    for timeline in (one_f_one_b(4, 8), Timeline("nothing", "", "", 0.0, (), ()), _hostile()):
        path.write_text(timeline_html(timeline), "utf-8")
        page = Page(driver, path)
        page("draw()")
        assert page.errors() == []
        assert driver.find_element(By.ID, "title").text == timeline.title
        assert driver.find_element(By.ID, "strip").is_displayed() == bool(timeline.memory)
        assert driver.find_element(By.ID, "plan").is_displayed() == bool(timeline.text)
    assert all(url.startswith(("file:", "data:", "chrome")) for url in _requests(driver))  # chrome: its empty page
    assert not driver.execute_script("return window.hacked")


def _hostile() -> Timeline:
    text = "<img src=x onerror='window.hacked = 1'>"
    event = Event(0, Stream.COMPUTE, EventKind.FORWARD, 0.0, 1.0, text, ((text, 1),), 0.0, 0, (1, 7))
    return Timeline(text, text, text, 1.0, (TimelineRow(text, (0,), text),), (event,))


@in_a_browser
def test_an_event_marks_its_lines(small: tuple[Page, Timeline]) -> None:
    page, timeline = small
    number = next(n for n, e in enumerate(timeline.events) if e.kind is EventKind.BACKWARD)
    box = page(f"box({number})")
    page.point_at(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page("hovered()") == number
    assert page("markedLines()") == list(BACKWARD_LINES)
    said = page.driver.find_element(By.ID, "tooltip").text
    for words in ("backward", "h.36 … h.47", "m = 0", "12.7 ms", "16.0 %", "as the plan says", "order B(s, m)"):
        assert words in said
    page.point_at(5, 5)
    assert page("hovered()") == -1 and page("markedLines()") == []
    assert page.errors() == []


PIXELS = """
const { width, height } = document.getElementById("memory");
const { data } = document.getElementById("memory").getContext("2d").getImageData(0, 0, width, height);
const first = ({ x, y }) => 4 * (Math.round(y * devicePixelRatio) * width + Math.round(x * devicePixelRatio));
return arguments[0].map((point) => [...data.slice(first(point), first(point) + 3)]);
"""


@in_a_browser
def test_memory_is_a_stack_of_its_parts(small: tuple[Page, Timeline]) -> None:
    """Each part has its colour, whichever other parts its row has: weights below, activations above."""
    page, timeline = small
    (memory,) = (m for m in timeline.memory if m.row == 1)
    middle = (memory.times_s[9] + memory.times_s[10]) / 2
    parts = dict(page(f"parts(1, {middle})"))
    assert [*parts] == ["weights", "gradients", "optimizer", "activations"]
    assert sum(parts.values()) == memory.size_bytes[9]
    page("select(1)")
    page("draw()")
    tops = itertools.accumulate(parts.values())
    points = [page(f"memoryPoint({middle}, {top - size / 2})") for top, size in zip(tops, parts.values(), strict=True)]
    colours = _colours(is_dark=False)
    assert page.driver.execute_script(PIXELS, points) == [_rgb(colours[f"part-{name}"]) for name in parts]
    assert page.errors() == []


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


@in_a_browser
def test_a_line_marks_its_events(small: tuple[Page, Timeline]) -> None:
    page, timeline = small
    line = page.driver.find_element(By.CSS_SELECTOR, '[data-line="21"]')
    ActionChains(page.driver).move_to_element(line).perform()
    assert page("markedEvents()") == [n for n, e in enumerate(timeline.events) if 21 in e.lines]
    line.click()
    page.point_at(5, 5)
    assert page("markedEvents()") and page("markedLines()") == [21]  # kept
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    assert page("markedEvents()") == [] and page("markedLines()") == []


@in_a_browser
def test_figures_by_line(driver: Any, tmp_path: Path) -> None:
    """A row marks the line that it is about, and the line its row; without figures there is no table."""
    path = tmp_path / "by_line.html"
    path.write_text(timeline_html(one_f_one_b(4, 8), BY_LINE), "utf-8")
    page = Page(driver, path)
    rows = driver.find_elements(By.CSS_SELECTOR, "#by-line tr")
    texts = [row.text.replace("\n", " ") for row in rows]
    assert texts[0] == "by line peak memory waits"
    assert texts[1].startswith("10") and texts[1].endswith("60.0 % 30 GB 12.5 % 25.1 ms")
    assert texts[3].endswith("10.0 % 5 GB") and HOSTILE[:4] in texts[3]
    ActionChains(driver).move_to_element(rows[1]).perform()
    assert page("markedLines()") == [10] and rows[1].get_attribute("class") == "marked"
    page.point_at(5, 5)
    assert page("markedLines()") == [] and not rows[1].get_attribute("class")
    page("hoverLine(10)")
    assert rows[1].get_attribute("class") == "marked"
    assert page.errors() == [] and not driver.execute_script("return window.hacked")
    path.write_text(timeline_html(one_f_one_b(4, 8)), "utf-8")
    Page(driver, path)
    assert not driver.find_element(By.ID, "by-line").is_displayed()


EXPOSED = View(
    "exposed communication",
    EXPOSED_COLUMNS,
    (
        ("send, forward", "h.11", 0.0251, 0.125, "data", "pipeline.ssp:17: assign stage[s] to gpus[pp = s]", "stage 1"),
        (HOSTILE, HOSTILE, 0.01, 0.05, HOSTILE, "(no statement)", "stage 1"),
    ),
    ("a note", "`eager_one_f_one_b` in place of `one_f_one_b`: exposed 0 ms"),
)


@in_a_browser
def test_exposed_communication(driver: Any, tmp_path: Path) -> None:
    """The table of the command, with its notes: what communicates, why it is exposed, and what would hide it."""
    path = tmp_path / "exposed.html"
    path.write_text(timeline_html(one_f_one_b(4, 8), BY_LINE, EXPOSED), "utf-8")
    page = Page(driver, path)
    texts = [row.text.replace("\n", " ") for row in driver.find_elements(By.CSS_SELECTOR, "#exposed tr")]
    assert texts[:3] == ["exposed communication a step", *EXPOSED.notes]
    assert texts[3].startswith("17") and texts[3].endswith("send, forward of h.11: data 12.5 % 25.1 ms")
    assert texts[4].startswith("(no statement)") and texts[4].count(HOSTILE) == 3
    page("hoverLine(17)")
    assert driver.find_element(By.CSS_SELECTOR, "#exposed tr.marked").text.startswith("17")
    assert page.errors() == [] and not driver.execute_script("return window.hacked")


@in_a_browser
def test_wheel_drag_and_keys(small: tuple[Page, Timeline]) -> None:
    page, timeline = small
    canvas = page.driver.find_element(By.ID, "tracks")
    origin = ScrollOrigin.from_element(canvas)
    ActionChains(page.driver).scroll_from_origin(origin, 0, -400).perform()
    zoomed = page("view()")
    assert 0 < zoomed["from"] < zoomed["to"] < timeline.step_s
    ActionChains(page.driver).click_and_hold(canvas).move_by_offset(-60, 0).release().perform()
    assert page("view()")["from"] > zoomed["from"]
    ActionChains(page.driver).send_keys("0").pause(0.4).perform()
    assert page("view()") == {"from": 0, "to": pytest.approx(timeline.step_s)}
    box = page("box(0)")
    page.point_at(60, box["y"] + 130)  # the name of a row further down
    ActionChains(page.driver).click().perform()
    assert page("selected()") == 1
    assert page.errors() == []


ZOOM = """
const [done, t] = [arguments[arguments.length - 1], window.ssdslTimeline];
const first = t.frameTimes.length;
let frame = 0;
const step = () => {
  if (frame === 60) return done({drawing: t.frameTimes.slice(first), between: times});
  const width = t.total * Math.pow(0.93, frame++);
  t.zoom(0.4 * (t.total - width), 0.4 * (t.total - width) + width);
  requestAnimationFrame(now => { times.push(now - last); last = now; step(); });
};
const times = [];
let last = performance.now();
step();
"""


@in_a_browser
def test_many_events_stay_fluid(driver: Any, tmp_path: Path) -> None:
    timeline = one_f_one_b(8, 455)
    assert len(timeline.events) > 20_000
    path = tmp_path / "large.html"
    path.write_text(timeline_html(timeline), "utf-8")
    page = Page(driver, path)
    found = driver.execute_async_script(ZOOM)
    drawing, between = (statistics.median(found[key]) for key in ("drawing", "between"))
    print(
        f"\n{len(timeline.events)} events, {path.stat().st_size / 1e6:.1f} MB: {drawing:.1f} ms to draw a frame (worst "
        f"{max(found['drawing']):.1f}), {between:.1f} ms between frames"
    )
    assert len(found["drawing"]) >= 59 and drawing < 50
    assert page.errors() == []


@in_a_browser
def test_the_params_of_the_run(driver: Any, tmp_path: Path) -> None:
    """The plan says its defaults; where the picture has other values, they stand beside them."""
    path = tmp_path / "params.html"
    timeline = replace(one_f_one_b(4, 8), params=(("T", 8), ("S", 4), ("M", 8)), bubble=0.1844)
    path.write_text(timeline_html(timeline), "utf-8")
    page = Page(driver, path)
    assert "T=8 S=4 M=8" in driver.find_element(By.ID, "subtitle").text
    assert [e.text for e in driver.find_elements(By.CSS_SELECTOR, ".line .value")] == ["T = 8"]
    figures = driver.find_element(By.ID, "figures").text
    assert "18.4 %" in figures and "bubble" in figures and "idle" not in figures
    assert page.errors() == []


@in_a_browser
@pytest.mark.parametrize("width", [480, 700, 999])
def test_a_narrow_window_has_all(small: tuple[Page, Timeline], width: int) -> None:
    """Nothing runs off the right edge, and the plan lies below the picture."""
    page, _ = small
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.driver.refresh()
        edges = "return ['#stage', '#plan', '#figures div:last-child', '#strip .part:last-child'].map("
        edges += "q => document.querySelector(q).getBoundingClientRect()).map(b => [b.right, b.top, b.bottom])"
        boxes = page.driver.execute_script(edges)
        assert all(right <= width for right, _, _ in boxes)
        assert boxes[1][1] >= boxes[0][2]
        assert page.errors() == []
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@in_a_browser
def test_a_sweep(driver: Any, tmp_path: Path) -> None:
    """A point and a row for each setting; either marks the other."""
    base = report_of(one_f_one_b(2, 2))
    over = replace(base, devices=tuple(replace(d, capacity_bytes=1) for d in base.devices), step_s=base.step_s / 2)
    hostile = UnknownCommand(None, "<img src=x onerror='window.hacked = 1'>", ())
    settings = (Setting({"T": 1}, base), Setting({"T": 2}, over), Setting({"T": 3}, refused=hostile))
    path = tmp_path / "sweep.html"
    path.write_text(sweep_html("a sweep </script>", settings), "utf-8")
    page = Page(driver, path)
    points = driver.find_elements(By.CSS_SELECTOR, "#plot .point")
    rows = driver.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert [p.get_attribute("class") for p in points] == ["point best", "point over"]
    assert [r.get_attribute("class") for r in rows] == ["best", "over", "refused"]
    assert "over by" in rows[1].text and "E0801: there is no command" in rows[2].text
    ActionChains(driver).move_to_element(rows[1]).perform()
    assert "marked" in points[1].get_attribute("class") and "marked" in rows[1].get_attribute("class")
    assert page.errors() == [] and not driver.execute_script("return window.hacked")
