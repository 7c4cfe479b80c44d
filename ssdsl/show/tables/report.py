"""`ssdsl simulate`: the step in figures, a row per role, and the traffic on the links."""

from collections.abc import Iterator
from typing import Any

from ssdsl.ir.program import Kernels
from ssdsl.show.charts.gantt import alike, shortened
from ssdsl.show.pattern import ranks
from ssdsl.show.view import Column, ColumnKind, View, money, seconds, size
from ssdsl.simulate.profile.partly_profiled import Coverage
from ssdsl.simulate.report import DeviceReport, Report

SUMMARY = (
    Column("step", ColumnKind.SECONDS, "bold"),
    Column("bubble", ColumnKind.SHARE),
    Column("exposed", ColumnKind.SHARE, key="exposed_share"),
    Column("MFU", ColumnKind.SHARE),
    Column("FLOP/s/device", ColumnKind.COUNT, drop=1, key="device_flops_per_s"),
    Column("peak memory", ColumnKind.BYTES),
    Column("of capacity", ColumnKind.SHARE),
    Column("devices", ColumnKind.COUNT),
)
DEVICES = (
    Column("role", style="bold cyan"),
    Column("ranks", fold=True, drop=2),
    Column("busy", ColumnKind.SECONDS),
    Column("communication", ColumnKind.SECONDS, drop=1),
    Column("exposed", ColumnKind.SECONDS),
    Column("idle", ColumnKind.SHARE),
    Column("peak", ColumnKind.BYTES),
    Column("full", ColumnKind.SHARE),
)
TRAFFIC = (
    Column("level", style="bold cyan"),
    Column("communication", style="green"),
    Column("calls", ColumnKind.COUNT),
    Column("bytes", ColumnKind.BYTES),
    Column("of all bytes", ColumnKind.SHARE),
)
KERNELS = {
    Kernels.EAGER: "kernels: one for each operator, as in programs of `ssdsl run`",
    Kernels.COMPILED: "kernels: those that torch.compile makes, as in programs of `ssdsl run --kernels compiled`",
    Kernels.FUSED: "kernels: fused, as by hand in Megatron-LM, also across communication",
}
VERSION = 2  # of the keys of `report_json`
LACKING = 3  # calls that a profile lacks
LONGEST_ROLE = 17  # what 80 columns have room for


def report_views(report: Report) -> tuple[View, ...]:
    """The tables of a simulated step."""
    return summary_view(report), devices_view(report), traffic_view(report)


def summary_view(report: Report) -> View:
    """A summary in one row; memory is that of the fullest device."""
    row = (
        report.step_s,
        report.bubble,
        report.exposed_share,
        report.mfu,
        None if report.flops_per_s is None else f"{flops(report.flops_per_s)}/s",
        report.peak_bytes,
        max((s for d in report.devices if (s := d.capacity_share) is not None), default=None),
        report.size,
    )
    cost = () if report.price is None else (f"a step costs {money(report.price, report.currency)}",)
    notes = KERNELS[report.kernels], *_hidden(report), *cost, *_measured(report)
    return View(report.title, SUMMARY, (row,), notes)


def _measured(report: Report) -> Iterator[str]:
    """Notes on what of a step was measured, if a profile had some of its times."""
    found = report.coverage
    if found is None:
        return
    known = found.kinds - len(found.lacking)
    calls = f"{known} of {found.kinds} kinds of calls"
    yield f"measured: {found.share:.0%} of the computing of all tasks, {calls} ({found.origin})"
    if found.lacking:
        longest = "; ".join(f"{seconds(time_s)} {words}" for words, time_s in found.lacking[:LACKING])
        yield f"by the rates of `{found.cluster}`, the longest first: {longest}"


def _hidden(report: Report) -> Iterator[str]:
    """A note on how much of the communication is exposed."""
    if report.communication_s:
        share, exposed, all_ = report.exposed_s / report.communication_s, report.exposed_s, report.communication_s
        yield f"exposed: {share:.0%} of the communication of a device, {seconds(exposed)} of {seconds(all_)}"


def devices_view(report: Report) -> View:
    """A row per role; roles whose figures are the same are one row."""
    groups = alike([d.name for d in report.devices], [_figures(d) for d in report.devices])
    rows = tuple(
        (
            shortened(name, LONGEST_ROLE),
            ranks(tuple(rank for n in numbers for rank in report.devices[n].ranks)),
            (device := report.devices[numbers[0]]).busy_s,
            device.communication_s,
            device.exposed_s,
            device.idle_share,
            device.peak_bytes,
            device.capacity_share,
        )
        for name, numbers in groups
    )
    notes = (
        "per device; busy: it computes; communication: its links carry something for it; exposed: it waits for that",
        "idle: it waits for other devices; a step is busy, exposed and idle; full: the peak as a share of its memory",
    )
    over = [d for d in report.devices if (d.capacity_share or 0) > 1]
    more = (f"out of memory: {len(over)} of {len(report.devices)} roles",) if over else ()
    most = max((d.host_bytes for d in report.devices), default=0)
    host = (f"in the memory of the host: {size(most)} for the device that has most there",) if most else ()
    return View("devices", DEVICES, rows, notes + host + more)


def traffic_view(report: Report) -> View:
    """The bytes that all devices send in a step, by level of links and kind."""
    total = sum(t.size_bytes for t in report.traffic) or 1
    rows = tuple((t.level, t.kind, t.calls, t.size_bytes, t.size_bytes / total) for t in report.traffic)
    return View("traffic of all devices in a step", TRAFFIC, rows, () if rows else ("nothing is communicated",))


def _coverage_json(found: Coverage) -> dict[str, Any]:
    """What of a step was measured."""
    lacking = [{"call": words, "seconds": time_s} for words, time_s in found.lacking]
    return {
        "origin": found.origin,
        "share": found.share,
        "computing_s": found.computing_s,
        "calls": found.kinds,
        "lacking": lacking,
    }


def report_json(report: Report) -> dict[str, Any]:
    """All figures as JSON; the events are in the trace and in the HTML page.

    docs/json.md lists the keys; `version` counts changes of existing keys.
    """
    return {
        "version": VERSION,
        "title": report.title,
        "plan": report.plan,
        "cluster": report.cluster,
        "step_s": report.step_s,
        "bubble": report.bubble,
        "communication_s": report.communication_s,
        "exposed_s": report.exposed_s,
        "model_flops": report.model_flops,
        "mfu": report.mfu,
        "device_flops_per_s": report.flops_per_s,
        "fuse": report.kernels is not Kernels.EAGER,
        "peak_bytes": report.peak_bytes,
        "fits": report.over_bytes == 0,
        "price": report.price,
        "currency": report.currency,
        "measured": None if report.coverage is None else _coverage_json(report.coverage),
        "devices": [_device_json(d) for d in report.devices],
        "traffic": [
            {"level": t.level, "kind": t.kind, "calls": t.calls, "bytes": t.size_bytes} for t in report.traffic
        ],
    }


def _figures(device: DeviceReport) -> tuple[float | None, ...]:
    """A key of a role: roles with equal figures share a row. Times are rounded to a nanosecond."""
    times = (round(v, 9) for v in (device.busy_s, device.communication_s, device.exposed_s, device.idle_share))
    return *times, device.peak_bytes, device.capacity_bytes


def _device_json(device: DeviceReport) -> dict[str, Any]:
    return {
        "role": device.name,
        "device": device.device,
        "ranks": list(device.ranks),
        "span_s": device.span_s,
        "compute_s": device.compute_s,
        "optimizer_s": device.optimizer_s,
        "busy_s": device.busy_s,
        "communication_s": device.communication_s,
        "exposed_s": device.exposed_s,
        "exposed_parts": dict(device.exposed_parts),
        "idle_share": device.idle_share,
        "peak_bytes": device.peak_bytes,
        "peak_parts": dict(device.peak_parts),
        "capacity_bytes": device.capacity_bytes,
        "capacity_share": device.capacity_share,
        "over_bytes": device.over_bytes,
        "host_bytes": device.host_bytes,
        "host_capacity_bytes": device.host_capacity_bytes,
    }


def flops(value: float) -> str:
    """Operations with three digits: 3.2 PFLOP."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}FLOP"
        value /= 1000
    return f"{value:.4g} EFLOP"
