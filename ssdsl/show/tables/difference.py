"""`ssdsl diff`: the differences between the simulated steps of two plans."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ssdsl.record import Record
from ssdsl.show.charts.gantt import alike
from ssdsl.show.tables.report import flops
from ssdsl.show.view import Column, ColumnKind, View, seconds, size
from ssdsl.simulate.report import DeviceReport, Report

LONGEST_NAME = 16
NAMED = 4  # roles that a note names
ROUNDING = 1e-9  # smaller relative changes do not count
Number = int | float | None
Names = tuple[str, str]
T = TypeVar("T")


class Figure(Record, Generic[T]):
    """A figure of a report or of a device: its key in JSON, its words, how it is formatted, and how it is read."""

    key: str
    words: str
    text: Callable[[float], str]
    of: Callable[[T], Number]


class Change(Record):
    """A figure before and after; None if it is unknown."""

    before: Number
    after: Number

    @property
    def absolute(self) -> Number:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def relative(self) -> float | None:
        return self.absolute / self.before if self.absolute is not None and self.before else None


def share(value: float) -> str:
    """A share of 1 as a percentage with one decimal."""
    return f"{value:.1%}"


def count(value: float) -> str:
    """A number with commas."""
    return f"{value:,.0f}"


OF_A_REPORT: tuple[Figure[Report], ...] = (
    Figure("step_s", "step", seconds, lambda r: r.step_s),
    Figure("bubble", "bubble", share, lambda r: r.bubble),
    Figure("communication_s", "communication", seconds, lambda r: r.communication_s),
    Figure("exposed_s", "exposed communication", seconds, lambda r: r.exposed_s),
    Figure("mfu", "MFU", share, lambda r: r.mfu),
    Figure("model_flops", "model FLOPs", flops, lambda r: r.model_flops),
    Figure("peak_bytes", "largest peak memory", size, lambda r: r.peak_bytes),
    Figure("traffic_bytes", "traffic of all devices", size, lambda r: sum(t.size_bytes for t in r.traffic)),
    Figure("roles", "roles", count, lambda r: len(r.devices)),
    Figure("devices", "devices", count, lambda r: r.size),
)
OF_A_DEVICE: tuple[Figure[DeviceReport], ...] = (
    Figure("busy_s", "busy", seconds, lambda d: d.busy_s),
    Figure("exposed_s", "exposed communication", seconds, lambda d: d.exposed_s),
    Figure("idle_share", "idle", share, lambda d: d.idle_share),
    Figure("peak_bytes", "peak memory", size, lambda d: d.peak_bytes),
)


def difference_views(before: Report, after: Report, names: Names) -> tuple[View, ...]:
    """The step, the roles that both have, and the traffic by level and kind. `names` are the names of the two."""
    summary = summary_view(before, after, names)
    if not _both(before, after):
        return summary, traffic_view(before, after, names)
    return summary, devices_view(before, after, names), traffic_view(before, after, names)


def summary_view(before: Report, after: Report, names: Names) -> View:
    """The figures of the step; memory is that of the fullest device."""
    rows = tuple((f.words, *_texts(Change(f.of(before), f.of(after)), f.text)) for f in OF_A_REPORT)
    called = _called(names)
    keys = [f"{short}: {name}" for short, name in zip(called, names, strict=True) if short != name]
    only = _only(before, after)
    notes = [
        f"only in {name}: {', '.join(found[:NAMED])}" + (f" and {len(found) - NAMED} more" * (len(found) > NAMED))
        for name, found in zip(called, only, strict=True)
        if found
    ]
    return View(f"{called[0]} to {called[1]}", _columns(names, "figure"), rows, (*keys, *notes))


def devices_view(before: Report, after: Report, names: Names) -> View:
    """The figures per device of each role that both have; roles with equal rows are shown once."""
    both = _both(before, after)
    texts = [tuple((f.words, *_texts(c, f.text)) for f, c in _device_changes(*pair)) for pair in both]
    rows = tuple(
        (role if number == 0 else "", *row)
        for role, numbers in alike([b.name for b, _ in both], texts)
        for number, row in enumerate(texts[numbers[0]])
    )
    return View("a device of each role", _columns(names, "role", "figure"), rows)


def traffic_view(before: Report, after: Report, names: Names) -> View:
    """The bytes that all devices send, by level of links and kind."""
    changes = _traffic(before, after, "size_bytes")
    rows = tuple((*key, *_texts(change, size)) for key, change in changes.items())
    notes = () if rows else ("neither communicates",)
    return View("traffic of all devices in a step", _columns(names, "level", "communication"), rows, notes)


def difference_json(before: Report, after: Report, names: Names) -> dict[str, Any]:
    """The JSON of `ssdsl diff`. A figure is an object of `before`, `after`, `change` and `relative` (change / before).

    Times are seconds, sizes bytes, shares of 1; what is not known, or only one of the two has, is null. Keys: `before`
    and `after`, the names; `figures` of the step (`step_s`, `bubble`, `communication_s` and `exposed_s` of a device,
    `mfu`, `model_flops`, `peak_bytes` of the fullest device, `traffic_bytes`, `roles`, `devices`); `devices`, a list of
    `role`, `busy_s`, `exposed_s`, `idle_share` and `peak_bytes` for the roles of both; `only_before` and `only_after`,
    other roles; `traffic`, a list of `level`, `kind`, `calls` and `bytes`.
    """
    only = _only(before, after)
    sizes, calls = _traffic(before, after, "size_bytes"), _traffic(before, after, "calls")
    return {
        "before": names[0],
        "after": names[1],
        "figures": {f.key: _json(Change(f.of(before), f.of(after))) for f in OF_A_REPORT},
        "devices": [
            {"role": b.name, **{f.key: _json(change) for f, change in _device_changes(b, a)}}
            for b, a in _both(before, after)
        ],
        "only_before": only[0],
        "only_after": only[1],
        "traffic": [
            {"level": level, "kind": kind, "calls": _json(calls[level, kind]), "bytes": _json(change)}
            for (level, kind), change in sizes.items()
        ],
    }


# -- what changes ----------------------------------------------------------------------------------------------------


def _both(before: Report, after: Report) -> list[tuple[DeviceReport, DeviceReport]]:
    later = {d.name: d for d in after.devices}
    return [(d, later[d.name]) for d in before.devices if d.name in later]


def _only(before: Report, after: Report) -> tuple[list[str], list[str]]:
    first, then = [d.name for d in before.devices], [d.name for d in after.devices]
    return [n for n in first if n not in then], [n for n in then if n not in first]


def _device_changes(before: DeviceReport, after: DeviceReport) -> list[tuple[Figure[DeviceReport], Change]]:
    return [(f, Change(f.of(before), f.of(after))) for f in OF_A_DEVICE]


def _traffic(before: Report, after: Report, field: str) -> dict[tuple[str, str], Change]:
    first, then = ({(t.level, t.kind): getattr(t, field) for t in r.traffic} for r in (before, after))
    return {key: Change(first.get(key, 0), then.get(key, 0)) for key in first | then}


# -- how it is written -----------------------------------------------------------------------------------------------


def _called(names: Names) -> Names:
    """The names at the head of columns: the given ones if they are short and different, else A and B."""
    return ("A", "B") if names[0] == names[1] or max(map(len, names)) > LONGEST_NAME else names


def _columns(names: Names, first: str, *more: str) -> tuple[Column, ...]:
    figures = (*_called(names), "change", "relative")
    return (
        Column(first, style="bold cyan", fold=True),
        *(Column(name) for name in more),
        *(Column(name, ColumnKind.COUNT, drop=int(name == "relative")) for name in figures),
    )


def _texts(change: Change, text: Callable[[float], str]) -> tuple[str, str, str, str]:
    """Before, after, the change with its sign, and the relative change. A share changes by points."""
    before, after = ("" if v is None else text(v) for v in (change.before, change.after))
    if change.absolute is None:
        return before, after, "", ""
    if abs(change.absolute) <= ROUNDING * abs(change.before or 0):
        return before, after, "same", ""
    sign = "+" if change.absolute > 0 else "-"
    if text is share:
        return before, after, f"{sign}{abs(change.absolute) * 100:.1f} points", ""
    relative = "" if change.relative is None else f"{change.relative:+.1%}"
    return before, after, sign + text(abs(change.absolute)), relative


def _json(change: Change) -> dict[str, Number]:
    return {
        "before": change.before,
        "after": change.after,
        "change": change.absolute,
        "relative": change.relative,
    }
