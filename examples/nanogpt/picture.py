"""Curves as SVG: losses above; below how far each is from the first, on a logarithmic scale, and what is allowed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, log10

COLOURS = ("#202020", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito 2008
WIDTH, LEFT, RIGHT, UPPER, LOWER = 760, 60, 740, (30, 290), (350, 560)
LEAST = 1e-8  # a difference of zero is drawn here

Curve = Sequence[float]


def picture(curves: Mapping[str, Curve], allowed: Curve) -> str:
    """An SVG of named curves of one length."""
    first = next(iter(curves.values()))
    steps, lowest, highest = len(first), min(map(min, curves.values())), max(map(max, curves.values()))
    parts = [_text(LEFT, 18, "loss of each training step")]
    step_of = _scale(0, max(1, steps - 1), LEFT, RIGHT)
    loss_at = _scale(floor(lowest), ceil(highest), UPPER[1], UPPER[0])
    parts += _axes(UPPER[1], steps, step_of, [(str(n), loss_at(n)) for n in range(floor(lowest), ceil(highest) + 1)])
    for number, (name, curve) in enumerate(curves.items()):
        dashes = f' stroke-dasharray="4 {4 * (len(curves) - 2)}" stroke-dashoffset="{4 * number}"' if number else ""
        width = 2.5 if number else 1
        parts.append(_line(number, [step_of(k) for k in range(steps)], map(loss_at, curve), width, dashes))
        parts.append(_text(RIGHT - 130, UPPER[0] + 18 * (number + 1), name, COLOURS[number]))
    most = ceil(log10(max(allowed)))
    size_at = _scale(log10(LEAST), most, LOWER[1], LOWER[0])
    ticks = [(f"1e{n}", size_at(n)) for n in range(round(log10(LEAST)), most + 1)]
    parts += [_text(LEFT, LOWER[0] - 12, f"distance from {next(iter(curves))}; grey: what rounding explains")]
    parts += _axes(LOWER[1], steps, step_of, ticks)
    area = [(step_of(k), size_at(log10(a))) for k, a in enumerate(allowed)]
    corners = [(step_of(0), LOWER[1]), *area, (step_of(steps - 1), LOWER[1])]
    parts.append(f'<polygon fill="#e8e8e8" points="{_points(corners)}"/>')
    for number, curve in list(enumerate(curves.values()))[1:]:
        sizes = [size_at(log10(max(LEAST, abs(a - b)))) for a, b in zip(curve, first, strict=True)]
        parts.append(_line(number, [step_of(k) for k in range(steps)], sizes, 1, ' opacity="0.8"'))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {LOWER[1] + 40}" font-family="sans-serif"'
    return (
        f'{head} font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _axes(
    bottom: float, steps: int, step_of: Callable[[float], float], ticks: Sequence[tuple[str, float]]
) -> list[str]:
    """A frame with lines at the ticks, and the steps below."""
    lines = [f'<path stroke="#cccccc" d="M{LEFT} {y:.1f}H{RIGHT}"/>' for _, y in ticks]
    words = [_text(LEFT - 8, y + 4, word, anchor="end") for word, y in ticks]
    marks = [n * steps // 6 for n in range(7)]
    return [*lines, *words, *(_text(step_of(min(k, steps - 1)), bottom + 18, str(k), anchor="middle") for k in marks)]


def _line(number: int, across: Iterable[float], down: Iterable[float], width: float, more: str) -> str:
    points = _points(zip(across, down, strict=True))
    return f'<polyline fill="none" stroke="{COLOURS[number]}" stroke-width="{width}"{more} points="{points}"/>'


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, words: str, colour: str = "#202020", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'
