"""The tables of a simulated step as the page writes them: texts, and shares for bars."""

from typing import Any

from ssdsl.record import replace
from ssdsl.show.charts.gantt import alike
from ssdsl.show.pattern import ranks
from ssdsl.show.tables.report import summary_view
from ssdsl.show.view import ColumnKind, Value, View, size, spelled
from ssdsl.simulate.report import DeviceReport, Report

KINDS = {ColumnKind.TEXT: "text", ColumnKind.PATH: "path"}  # others are numbers


def table(view: View) -> dict[str, Any]:
    """A view: its columns with their kinds, and its rows as texts."""
    return {
        "title": view.title,
        "columns": [{"name": column.name, "kind": KINDS.get(column.kind, "number")} for column in view.columns],
        "rows": spelled(view),
        "notes": list(view.notes),
    }


def communication(view: View) -> dict[str, Any]:
    """The communication of a step, with what devices wait for longest in front, and then what is largest; what it goes
    over stands behind its kind, `all_reduce tp`."""
    keys = [column.json_key for column in view.columns]
    exposed, bytes_ = keys.index("exposed_s"), keys.index("bytes")
    rows = sorted(view.rows, key=lambda row: (-_number(row[exposed]), -_number(row[bytes_])))
    found = table(replace(view, rows=tuple(rows)))
    kind, over = keys.index("communication"), keys.index("over")
    for row in found["rows"]:
        row[kind] = f"{row[kind]} {row.pop(over)}".strip()
    del found["columns"][over]
    return found


def _number(value: Value) -> float:
    return float(value or 0)


def figures(report: Report) -> list[tuple[str, str]]:
    """The figures of a step, each with its name; those that are not known are left out."""
    view = summary_view(report)
    (row,) = spelled(view)
    return [(column.name, text) for column, text in zip(view.columns, row, strict=True) if text]


def memory(report: Report) -> list[dict[str, Any]]:
    """The memory of a device of each role at its peak; roles that are alike are one row."""
    groups = alike([d.name for d in report.devices], [_figures(d) for d in report.devices])
    return [_memory(name, [report.devices[n] for n in numbers]) for name, numbers in groups]


def _figures(device: DeviceReport) -> tuple[Any, ...]:
    return device.device, device.capacity_bytes, device.peak_parts


def _memory(name: str, devices: list[DeviceReport]) -> dict[str, Any]:
    device = devices[0]
    peak, capacity = device.peak_bytes, device.capacity_bytes
    whole = max(capacity or 0, peak) or 1
    return {
        "role": name,
        "ranks": ranks(tuple(rank for d in devices for rank in d.ranks)),
        "device": device.device,
        "peak": size(peak),
        "full": None if capacity is None else f"{peak / capacity:.0%}",
        "isOver": device.over_bytes > 0,
        "limit": None if capacity is None else capacity / whole,
        "parts": [{"name": part, "size": size(bytes_), "share": bytes_ / whole} for part, bytes_ in device.peak_parts],
    }
