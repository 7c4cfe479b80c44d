"""`ssdsl search --explain LINE`: what is known of what a search chooses in a line of a plan."""

from ssdsl.lang import nodes
from ssdsl.show.view import Column, ColumnKind, View
from ssdsl.sketch.answers.choices import LayerTurns, OpenChoices
from ssdsl.sketch.result import SearchResult, Tried
from ssdsl.sketch.sketch import Sketch


def numbers_view(found: SearchResult, sketch: Sketch, name: str) -> View:
    """A row for each number of a param, or of a choice in all turns: the best plan with it that was simulated, among
    those without other changes, and how many were."""
    columns = (
        Column(name, ColumnKind.COUNT, style="bold cyan", key="number"),
        Column("best step", ColumnKind.SECONDS, "bold", key="step_s"),
        Column("peak", ColumnKind.BYTES, key="peak_bytes"),
        Column("fits", key="fits"),
        Column("simulated", ColumnKind.COUNT),
        Column("with", fold=True, key="setting"),
    )
    mine = [t for t in found.tried if t.sketch.file == sketch.file and not t.changes and t.setting.report is not None]
    rows = []
    for number in next(p.tried for p in sketch.open if p.name == name):
        those = [t for t in mine if t.opened.get(name) == number]
        best = min(those, key=lambda t: (not t.fits, t.cost), default=None)
        rows.append((number, *_figures(best), len(those), "" if best is None else _others(best, name)))
    note = "plans that were not simulated are refused, too large, or slower by their bounds"
    return View(f"`{name}`, by number", columns, tuple(rows), (note,))


def _figures(best: Tried | None) -> tuple[float | None, int | None, str]:
    if best is None:
        return None, None, ""
    return best.report.step_s, best.report.peak_bytes, "yes" if best.fits else "no"


def _others(tried: Tried, name: str) -> str:
    return " ".join(f"{other}={number}" for other, number in tried.opened.items() if other != name)


def effects_view(name: str, known: OpenChoices) -> View:
    """A row for each device, kind of layer and number of a choice: what a turn with that number changes of a step, as
    whole plans show it."""
    columns = (
        Column("devices", style="bold cyan"),
        Column("turns", fold=True),
        Column("number", ColumnKind.COUNT),
        Column("a turn takes", style="bold"),
    )
    those = known.turns[name]
    rows = [
        (device, _turns(those, kind, device), number, str(effect))
        for (device, (choice, kind), number), effect in known.effects.items()
        if choice == name
    ]
    note = f"against {known.own[name]} in all turns: of one turn, in seconds of a step and bytes of the device's peak"
    return View(f"`{name}`, turn by turn", columns, tuple(rows), (note,))


def _turns(those: LayerTurns, kind: int, device: str) -> str:
    return ", ".join(str(turn) for turn in those.alike(kind) if device in those.devices[turn])


def names_by_line(script: nodes.Script) -> dict[int, str]:
    """The names of the params and choices of a plan, by the lines in which they stand."""
    named = {s.name.text: s for s in script.statements if isinstance(s, nodes.ParamStatement)}
    stated = {**named, **script.choices}
    return {s.span.source.line_column(s.span.start)[0]: name for name, s in stated.items()}
