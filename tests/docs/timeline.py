"""A step as a picture: a row for each role, a box for each task, as docs/tutorial.md shows it."""

from ssdsl.show.charts.gantt import MARKS, TASKS
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline

WIDTH, LEFT, TOP, ROW, BOX = 1000, 110, 44, 44, 34  # of the picture, its margins, a row and what is drawn of it; pixels
NUMBERED = 18  # the narrowest box that shows its micro-batch, in pixels
FONT = 'font-family="Helvetica, Arial, sans-serif"'
INK, IDLE = "#1f2937", "#eef0f4"


def picture(timeline: Timeline, title: str) -> str:
    """An SVG of what the devices of each row compute, and of their waiting."""
    end_s = max(event.end_s for event in timeline.events)
    scale = (WIDTH - LEFT - 16) / end_s
    height = TOP + ROW * len(timeline.rows) + 60
    size = f'width="{WIDTH}" height="{height}"'
    shown = [e for e in timeline.events if e.stream is Stream.COMPUTE]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height}">',
            f'<rect {size} fill="#ffffff"/>',
            _text(16, 26, title, 15, "bold"),
            *(_row(number, row.name, end_s * scale) for number, row in enumerate(timeline.rows)),
            *(_box(event, scale) for event in shown),
            _axis(end_s, scale, TOP + ROW * len(timeline.rows)),
            _legend([kind for kind in MARKS if any(e.kind is kind for e in shown)], height - 22),
            "</svg>\n",
        ]
    )


def _row(number: int, name: str, width: float) -> str:
    y = TOP + ROW * number
    idle = f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BOX}" fill="{IDLE}"/>'
    return _text(16, y + 22, name, 13) + idle


def _box(event: Event, scale: float) -> str:
    x, width = LEFT + event.start_s * scale, (event.end_s - event.start_s) * scale
    y, (ink, colour) = TOP + ROW * event.row, _colours(event.kind)
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" fill="{colour}" stroke="#ffffff"/>'
    if event.kind not in TASKS or width < NUMBERED:
        return box
    number = "".join(str(at) for _, at in event.coordinate)
    return box + _text(x + width / 2, y + 22, number, 12, colour=ink, anchor="middle")


def _axis(end_s: float, scale: float, y: int) -> str:
    """The time in tenths of a second, at most a dozen."""
    step_s = next(s for s in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if end_s / s <= 12)
    marks = (k * step_s for k in range(int(end_s / step_s) + 1))
    return "".join(_text(LEFT + t * scale, y + 10, f"{t:g} s", 11, anchor="middle") for t in marks)


def _legend(kinds: list[EventKind], y: int) -> str:
    items = [(_colours(kind)[1], MARKS[kind].word) for kind in kinds] + [(IDLE, "idle: the bubble")]
    return "".join(
        f'<rect x="{LEFT + 170 * n}" y="{y - 12}" width="14" height="14" fill="{colour}"/>'
        + _text(LEFT + 170 * n + 20, y, word, 12)
        for n, (colour, word) in enumerate(items)
    )


def _colours(kind: EventKind) -> tuple[str, str]:
    """Of the letters and of the box: those of the chart in the terminal."""
    ink, _, colour = MARKS[kind].style.partition(" on ")
    return ink, colour


def _text(
    x: float, y: float, text: str, size: int, weight: str = "normal", colour: str = INK, anchor: str = "start"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} {FONT} font-size="{size}" font-weight="{weight}" fill="{colour}">{text}</text>'
