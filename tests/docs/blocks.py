"""The picture of docs/splits.md: which voxels each device has of what an operator reads, and which it receives."""

from dataclasses import dataclass

from ssdsl.ir.comm import Exchange
from ssdsl.ir.function import Conversion, WindowPart
from ssdsl.ir.program import Program
from ssdsl.plan.regions import Regions

Span = tuple[int, int]
Place = dict[str, int]  # a device's coordinates

SIDE, GAP, LEFT, TOP = 96, 28, 190, 62  # of a square, between squares, for the words; in pixels
PAPER, WHOLE, LINE, OWN, RECEIVED, INK = "#ffffff", "#f2f4f7", "#c8ccd4", "#5a98f7", "#f5a623", "#1f2937"
FONT = 'font-family="Helvetica, Arial, sans-serif"'


@dataclass(frozen=True)
class Read:
    """What an operator reads: along two axes of its mesh, by the number of the part, what is there and what is needed.

    `size` is that of the whole, along both.
    """

    operator: str
    size: int
    have: dict[str, Regions]
    need: dict[str, Regions]

    def spans(self, regions: dict[str, Regions], at: Place) -> tuple[Span, Span]:
        """Down and across."""
        (down,), (across,) = (regions[axis][at[axis]] for axis in at)
        return down, across


def reads_of(program: Program) -> list[Read]:
    """The operators that read windows, in the order in which they run."""
    found, operators = [], {o.name: o for o in program.graph.operators}
    for function in program.functions:
        moved = {i.result.name: i for i in function.body() if isinstance(i, Conversion)}
        for op in (o for o in function.operators() if o.kernel.windows):
            need = {w.coordinate.name: _runs(w) for w in op.kernel.windows}
            steps = moved[op.reads[0]].forward if op.reads[0] in moved else ()
            sent = {s.axes[0]: s.source.at for s in steps if isinstance(s, Exchange) and s.source.at}
            operator = operators[op.operator]
            found.append(Read(f"{operator.path}", op.kernel.windows[0].size, need | sent, need))
    return found


def picture(program: Program) -> str:
    """A row for each operator, a column for each device."""
    reads = reads_of(program)
    (first, rows), (second, columns) = program.plan.meshes[0].axes[:2]
    places = [{first: a, second: b} for a in range(rows) for b in range(columns)]
    width = LEFT + len(places) * (SIDE + GAP)
    height = TOP + len(reads) * (SIDE + GAP) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        _text(16, 26, "What each device has, and what its neighbours send", 15, "bold"),
        *(_text(LEFT + k * (SIDE + GAP), TOP - 10, _named(at), 12) for k, at in enumerate(places)),
    ]
    for number, read in enumerate(reads):
        y = TOP + number * (SIDE + GAP)
        lines += [_text(16, y + 18, read.operator, 13, "bold"), _text(16, y + 36, f"of {read.size} x {read.size}", 12)]
        for k, at in enumerate(places):
            lines += _square(LEFT + k * (SIDE + GAP), y, read, at)
    lines += _legend(height - 26)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _runs(part: WindowPart) -> Regions:
    return tuple((run,) for run in part.needs)


def _named(at: Place) -> str:
    return ", ".join(f"{axis} = {n}" for axis, n in at.items())


def _square(x: int, y: int, read: Read, at: Place) -> list[str]:
    """The cross-section: what is received lies under what is there."""
    scale = SIDE / read.size
    need, have = read.spans(read.need, at), read.spans(read.have, at)
    (top, bottom), (left, right) = need
    words = f"{bottom - top} x {right - left}"
    return [
        f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="{WHOLE}" stroke="{LINE}"/>',
        _rect(x, y, scale, need, RECEIVED),
        _rect(x, y, scale, have, OWN),
        _text(x, y + SIDE + 14, words, 11),
    ]


def _rect(x: int, y: int, scale: float, spans: tuple[Span, Span], colour: str) -> str:
    (top, bottom), (left, right) = spans
    place = f'x="{x + left * scale:g}" y="{y + top * scale:g}"'
    size = f'width="{(right - left) * scale:g}" height="{(bottom - top) * scale:g}"'
    return f'<rect {place} {size} fill="{colour}"/>'


def _legend(y: int) -> list[str]:
    words = (
        (OWN, "is there: loaded, or computed by the device"),
        (RECEIVED, "received from neighbours before it is read"),
    )
    found = []
    for number, (colour, text) in enumerate(words):
        x = 16 + 310 * number
        found += [f'<rect x="{x}" y="{y}" width="14" height="14" fill="{colour}"/>', _text(x + 22, y + 12, text, 12)]
    return found


def _text(x: float, y: float, text: str, size: int, weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" {FONT} font-size="{size}" font-weight="{weight}" fill="{INK}">{text}</text>'
