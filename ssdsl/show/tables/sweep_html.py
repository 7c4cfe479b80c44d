"""A sweep as one self-contained HTML file: a plot of time against memory, and the table."""

from typing import Any

from ssdsl.show.charts.timeline_html import filled
from ssdsl.show.tables.sweep import note
from ssdsl.sketch.setting import Setting, best_of

SCRIPTS = ("elements", "scale", "sweep")
FIGURES = ("step", "bubble", "exposed", "peak", "filled", "traffic", "devices", "device_s")


def sweep_html(title: str, settings: tuple[Setting, ...]) -> str:
    """The page as text, to be written to a file and opened in a browser."""
    return filled("sweep", title, SCRIPTS, _data(title, settings))


def _data(title: str, settings: tuple[Setting, ...]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for s in settings for name in s.params))
    reports = [s.report for s in settings if s.report is not None]
    capacities = {d.capacity_bytes for report in reports for d in report.devices}
    first = dict(reports[0].timeline.params) if reports else {}
    return {
        "title": title,
        "params": names,
        "others": [(name, value) for name, value in first.items() if name not in names],
        "capacity": capacities.pop() if len(capacities) == 1 else None,
        "settings": [_setting(s, names, best_of(settings)) for s in settings],
    }


def _setting(setting: Setting, names: list[str], best: Setting | None) -> dict[str, Any]:
    return {
        "params": [setting.params.get(name) for name in names],
        **dict(zip(FIGURES, setting.figures, strict=True)),
        "over": setting.over,
        "refused": setting.refused is not None,
        "best": setting is best,
        "note": note(setting, best, in_full=True),
    }
