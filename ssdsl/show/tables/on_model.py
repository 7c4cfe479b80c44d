"""Views of `ssdsl plans --for`, a table and JSON: what the plans that come with ssdsl make of a model."""

from collections.abc import Iterator, Sequence
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.lang.suggest import counted
from ssdsl.matrix.on_model import PlanOnModel
from ssdsl.show.tables.matrix import cell_json
from ssdsl.show.tables.sweep import OVER, reasons
from ssdsl.show.view import Column, ColumnKind, Value, View, size

VERSION = 1  # of the keys of `on_model_json`
COLUMNS = (
    Column("plan", style="bold cyan"),
    Column("at", fold=True, style="green"),
    Column("devices", ColumnKind.COUNT),
    Column("work", ColumnKind.SHARE),
)
STEP = (
    Column("step", ColumnKind.SECONDS, "bold"),
    Column("peak memory", ColumnKind.BYTES),
    Column("of capacity", ColumnKind.SHARE, drop=1),
    Column("device-s", ColumnKind.SECONDS, drop=2),
)
OUTCOME = Column("outcome", fold=True)


def on_model_view(model: str, cluster: Cluster | None, devices: range, plans: Sequence[PlanOnModel]) -> View:
    """The table: a row for each plan, the good ones first; with a cluster the best use of devices first. Plans of
    papers have one only if they are good."""
    shown = sorted((plan for plan in plans if plan.is_good or not plan.of_paper), key=_rank)
    columns = (*COLUMNS, *(STEP if cluster is not None else ()), OUTCOME)
    rows = tuple(_row(plan, cluster is not None) for plan in shown)
    on = f" on {cluster.name}" if cluster is not None else ""
    title = f"plans for {model}{on}, {_range(devices)} devices"
    return View(title, columns, rows, tuple(_notes(plans, shown, cluster is not None)))


def _rank(plan: PlanOnModel) -> tuple[float, ...]:
    """Good plans by the devices' time, then those that are over, those that divide no work, and those refused."""
    setting = plan.setting
    over, time = (setting.over, setting.device_s) if setting is not None else (0, 0.0)
    return (not plan.is_good, not plan.divided, plan.best is None, over, time)


def _row(plan: PlanOnModel, simulated: bool) -> tuple[Value, ...]:
    best, setting = plan.best, plan.setting
    row: tuple[Value, ...] = (
        plan.plan,
        *((best.words, best.devices, best.work) if best is not None else ("", None, None)),
    )
    if simulated and setting is not None:
        step, _, _, peak, filled, _, _, device_s = setting.figures
        row += (step, peak, filled, device_s)
    elif simulated:
        row += (None,) * len(STEP)
    return (*row, _outcome(plan))


def _outcome(plan: PlanOnModel) -> str:
    if plan.best is None:
        codes = dict.fromkeys(cell.reason.code for cell in plan.cells if cell.reason is not None)
        crashed = ("crashed",) if any(cell.fault for cell in plan.cells) else ()
        return " ".join((*(("refused", *codes) if codes else ()), *crashed)) or "takes other numbers of devices"
    if not plan.divided:
        return "proved, but divides no work"
    if plan.setting is None:
        return "proved"
    return f"over by {size(plan.setting.over)}" if plan.setting.over else "fits"


def _notes(plans: Sequence[PlanOnModel], shown: Sequence[PlanOnModel], simulated: bool) -> Iterator[str]:
    tried = sum(len(plan.cells) for plan in plans)
    yield f"{counted(tried, 'setting')} tried, those near to a plan's defaults first; --json has all"
    if hidden := len(plans) - len(shown):
        yield f"{counted(hidden, 'plan')} of papers: not on this model"
    refused = [plan for plan in shown if plan.best is None]
    yield from reasons((plan.cells[0].reason, plan.plan) for plan in refused if plan.cells and plan.cells[0].reason)
    yield "work: of the busiest device, of what one device multiplies in a step"
    if simulated:
        yield "device-s: step x devices; `ssdsl search` seeks the best of all settings"
        if any(plan.setting is not None and plan.setting.over for plan in shown):
            yield OVER
    else:
        yield "--cluster NAME says what fits; `ssdsl matrix` tries settings of your own, and trains"


def _range(devices: range) -> str:
    return str(devices[0]) if len(devices) == 1 else f"{devices[0]} to {devices[-1]}"


def on_model_json(model: str, cluster: Cluster | None, devices: range, plans: Sequence[PlanOnModel]) -> dict[str, Any]:
    """All plans with what became of each setting that was tried; docs/json.md lists the keys."""
    return {
        "version": VERSION,
        "model": model,
        "cluster": cluster.name if cluster is not None else None,
        "devices": [devices[0], devices[-1]],
        "plans": [_plan_json(plan) for plan in sorted(plans, key=_rank)],
    }


def _plan_json(plan: PlanOnModel) -> dict[str, Any]:
    best, setting = plan.best, plan.setting
    figures = setting.figures if setting is not None else (None,) * 8
    return {
        "plan": plan.plan,
        "of_paper": plan.of_paper,
        "outcome": _outcome(plan),
        "params": dict(best.params) if best is not None else None,
        "devices": best.devices if best is not None else None,
        "work": best.work if best is not None else None,
        "step_s": figures[0],
        "peak_bytes": figures[3],
        "capacity_share": figures[4],
        "device_s": figures[7],
        "over_bytes": setting.over if setting is not None else None,
        "settings": plan.settings,
        "more": plan.is_more,
        "tried": [cell_json(cell) for cell in plan.cells],
    }
