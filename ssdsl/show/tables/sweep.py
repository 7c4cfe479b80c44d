"""Views of `ssdsl sweep`, a table and JSON: a plan under many settings of its params, each simulated."""

from collections.abc import Iterable, Iterator
from typing import Any

from ssdsl.show.view import Column, ColumnKind, View, size
from ssdsl.sketch.setting import Setting, best_of
from ssdsl.text.diagnostic import Diagnostic

VERSION = 1  # of the keys of `sweep_json`
FIGURES = (
    Column("step", ColumnKind.SECONDS, "bold"),
    Column("bubble", ColumnKind.SHARE),
    Column("exposed", ColumnKind.SHARE, drop=4),
    Column("peak memory", ColumnKind.BYTES),
    Column("of capacity", ColumnKind.SHARE, drop=2),
    Column("traffic", ColumnKind.BYTES, drop=3),
    Column("devices", ColumnKind.COUNT),
    Column("device-s", ColumnKind.SECONDS, drop=1),
    Column("note"),
)
NOTES = (
    "best: of those that fit, the fewest device-s (step x devices); traffic: of all devices in a step",
    "exposed: the share of the step in which a device waits for communication",
)
OVER = "over: a device needs so much more memory than it has"


def sweep_view(title: str, settings: tuple[Setting, ...]) -> View:
    """The table: a row for each setting, in the order given."""
    best = best_of(settings)
    names = dict.fromkeys(name for s in settings for name in s.params)
    columns = (*(Column(name, ColumnKind.COUNT, "bold cyan", key=name) for name in names), *FIGURES)
    rows = tuple((*(s.params.get(name) for name in names), *s.figures, note(s, best)) for s in settings)
    none = () if best is not None else ("no setting fits",)
    over = (OVER,) if any(s.over for s in settings) else ()
    return View(title, columns, rows, (*none, *_refusals(settings), *NOTES, *over))


def note(setting: Setting, best: Setting | None, in_full: bool = False) -> str:
    """The last cell of a row: a refusal's code, the missing memory, or `best`; `in_full` with the refusal's text."""
    if (d := setting.refused) is not None:
        return f"{d.code}: {d.text(d.title)}" if in_full else d.code
    if setting.over:
        return f"over by {size(setting.over)}"
    return "best" if setting is best else ""


def _refusals(settings: tuple[Setting, ...]) -> Iterator[str]:
    yield from reasons((s.refused, s.words) for s in settings if s.refused is not None)


def reasons(refused: Iterable[tuple[Diagnostic, str]]) -> Iterator[str]:
    """Each reason of a refusal once, with the first setting that it refuses; of the settings' diagnostics and words."""
    found: dict[str, list[str]] = {}
    for d, words in refused:
        found.setdefault(f"{d.code}: {d.text(d.title)}", []).append(words)
    for reason, those in found.items():
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        yield f"{reason} ({those[0]}{more})"


def sweep_json(plan: str, cluster: str, settings: tuple[Setting, ...]) -> dict[str, Any]:
    """The sweep as JSON; docs/json.md lists the keys."""
    best = best_of(settings)
    return {
        "version": VERSION,
        "plan": plan,
        "cluster": cluster,
        "best": dict(best.params) if best is not None else None,
        "settings": [_json(s) for s in settings],
    }


def _json(setting: Setting) -> dict[str, Any]:
    keys = ("step_s", "bubble", "exposed_share", "peak_bytes", "capacity_share", "traffic_bytes", "devices", "device_s")
    refused = setting.refused
    return {
        "params": dict(setting.params),
        **dict(zip(keys, setting.figures, strict=True)),
        "mfu": setting.report.mfu if setting.report is not None else None,
        "over_bytes": setting.over if setting.report is not None else None,
        "refused": {"code": refused.code, "message": refused.text(refused.title)} if refused is not None else None,
    }
