"""`ssdsl search`: the baseline, the best plans, the best of each kind of parallelism, and what the search looked at."""

from collections.abc import Iterator, Sequence
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.program import Kernels
from ssdsl.lang.suggest import counted
from ssdsl.model.graph import Graph, Origin
from ssdsl.show.charts.scatter import scatter
from ssdsl.show.tables.open_params import listed
from ssdsl.show.tables.report import KERNELS
from ssdsl.show.view import Column, ColumnKind, View, money, seconds, size
from ssdsl.sketch.by import By
from ssdsl.sketch.reasons import SAME, notes, reason, spent
from ssdsl.sketch.result import PlanChange, SearchResult, Tried
from ssdsl.sketch.sketch import Sketch, Values

VERSION = 2  # of the keys of `search_json`
OVER_SHOWN = 3  # plans out of memory that are named
COLUMNS = (
    Column("plan", key="plan", drop=2),
    Column("setting", key="setting", fold=True),
    Column("step", ColumnKind.SECONDS, "bold", key="step_s"),
    Column("samples /s/device", key="samples_per_device_s", drop=4),
    Column("tokens /s/device", key="tokens_per_device_s", drop=3),
    Column("MFU", ColumnKind.SHARE, key="mfu"),
    Column("bubble", ColumnKind.SHARE, key="bubble"),
    Column("exposed", ColumnKind.SHARE, key="exposed_share", drop=1),
    Column("peak", ColumnKind.BYTES, key="peak_bytes"),
    Column("devices", ColumnKind.COUNT, key="devices"),
    Column("cost", key="cost", drop=5),
    Column("why not better", key="why", fold=True),
)
RATES = ("samples_per_device_s", "tokens_per_device_s")


def search_views(title: str, found: SearchResult, graph: Graph, cluster: Cluster, top: int) -> Iterator[View]:
    """The tables, in their order."""
    best = [("baseline", found.baseline), *((str(n), t) for n, t in enumerate(found.ranked[:top], 1))]
    yield _table(title, best, found, graph, (_headline(found),))
    families = [(t.family, t) for t in found.best_of_families()]
    if len(families) > 1:
        yield _table("the best of each kind of parallelism", families, found, graph, ())
    if len(found.devices) > 1 and (priced := _time_and_money(found)).rows:
        yield priced
    yield View("what was looked at", (), (), tuple(_notes(found, cluster)))


def _time_and_money(found: SearchResult) -> View:
    """The simulated plans that no other one beats in both time and money, the fastest first."""
    columns = (
        Column("step", ColumnKind.SECONDS, "bold", key="step_s"),
        Column("cost", key="cost"),
        Column("devices", ColumnKind.COUNT),
        Column("plan", style="bold cyan"),
        Column("setting", fold=True),
    )
    rows, least = [], float("inf")
    priced = [(t.report.step_s, t.report.price, t) for t in found.ranked if t.report.price is not None]
    for step_s, price, t in sorted(priced, key=lambda one: one[:2]):
        if price < least * (1 - SAME):
            least = price
            cost = money(price, t.report.currency)
            rows.append((step_s, cost, t.setting.devices, _name(t.sketch, found), _setting(t)))
    return View("time against money", columns, tuple(rows), ("simulated plans that no other one beats in both",))


def _table(
    title: str, rows: Sequence[tuple[str, Tried]], found: SearchResult, graph: Graph, below: tuple[str, ...]
) -> View:
    figures = [row(t, found, graph) for _, t in rows]
    currency = next((t.report.currency for _, t in rows if t.setting.report is not None), "")
    several = len({t.sketch.file for _, t in rows}) > 1
    empty = {key for key in (*RATES, "cost") if not any(f[key] for f in figures)} | ({"plan"} if not several else set())
    shown = [c for c in COLUMNS if c.key not in empty]
    for f in figures:
        f |= {key: f"{f[key]:,.3g}" if f[key] < 1000 else f"{f[key]:,.0f}" for key in RATES if f[key]}
        f["cost"] = money(f["cost"], currency) if f["cost"] else ""
    cells = tuple((label, *(f[c.key] for c in shown)) for (label, _), f in zip(rows, figures, strict=True))
    return View(title, (Column("", style="bold cyan", key="row", fold=True), *shown), cells, below)


def row(tried: Tried, found: SearchResult, graph: Graph) -> dict[str, Any]:
    """The figures of a setting by column; for a refused one, most are None."""
    figures: dict[str, Any] = dict.fromkeys(c.key for c in COLUMNS)
    figures |= {"plan": _name(tried.sketch, found), "setting": _setting(tried), "why": why(tried, found)}
    if tried.setting.report is not None:
        report, cost = tried.report, tried.setting.device_s
        counts = zip(RATES, rates(graph), strict=True)
        figures |= {key: count / cost for key, count in counts if count}
        figures |= {"step_s": report.step_s, "mfu": report.mfu, "bubble": report.bubble}
        figures |= {"exposed_share": report.exposed_share}
        figures |= {"peak_bytes": report.peak_bytes, "devices": tried.setting.devices, "cost": report.price}
    return figures


def _name(sketch: Sketch, found: SearchResult) -> str:
    """The plan's name, or its file if two plans have the name."""
    files = {t.sketch.file for t in (found.baseline, *found.tried) if t.sketch.name == sketch.name}
    return sketch.name if len(files) < 2 else sketch.file


def _setting(tried: Tried) -> str:
    words = tried.setting.words or "as it is"
    return ", ".join((words, *tried.changes))


def rates(graph: Graph) -> tuple[int | None, int | None]:
    """The samples and the tokens of a step: the size of the batch, and that times the sequence length; None if
    inputs have no axes of these names."""
    sizes: dict[str, int] = {}
    for value in graph.values.values():
        if value.origin is Origin.INPUT:
            sizes |= {n: s for n, s in zip(graph.axes.get(value.name, ()), value.shape, strict=False) if n not in sizes}
    samples = sizes.get("batch")
    return samples, samples * sizes["seq"] if samples and "seq" in sizes else None


def why(tried: Tried, found: SearchResult) -> str:
    """The last cell of a row: how much worse it is than the best plan, and why."""
    best = found.best
    if (d := tried.setting.refused) is not None:
        return f"{d.code}: {d.text(d.title)}"
    if tried.setting.devices not in found.devices:
        over = f", over by {size(tried.over_bytes)}" if tried.over_bytes else ""
        return f"takes {counted(tried.setting.devices, 'device')}{over}"
    if tried.over_bytes:
        return f"over by {size(tried.over_bytes)}"
    if best is None:
        return ""
    if tried is best:
        here = spent(tried.report)
        lost, name = max((here.waiting, "waiting"), (here.exposed, "exposed communication"))
        return f"best; {name} takes {lost / here.all:.0%}" if lost > 0.005 * here.all else "best"
    slower = tried.setting.value / best.setting.value - 1
    because = reason(tried.report, best.report) if slower > 0 else ""  # a baseline may be the better plan
    return f"{slower:+.1%}{': ' if because else ''}{because}"


def _headline(found: SearchResult) -> str:
    base, best = found.baseline, found.best
    if best is None:
        if found.left:
            return f"no plan fits so far: {found.simulated} of {found.settings:,} settings are simulated"
        if not found.settings:
            return f"no plan fits: {_no_setting(found)}"
        return f"no plan fits{': every setting is refused' if found.refused == found.settings else ''}"
    if not base.fits:
        return f"the baseline does not run; best {seconds(best.report.step_s)}"
    per_device = base.setting.devices != best.setting.devices
    here, there = (seconds(t.setting.device_s if per_device else t.report.step_s) for t in (base, best))
    change = best.setting.value / base.setting.value - 1
    more = best.report.peak_bytes - base.report.peak_bytes
    bubbles = f"bubble {base.report.bubble:.0%} -> {best.report.bubble:.0%}"
    memory = f"{'+' if more >= 0 else '-'}{size(abs(more))} on the fullest device"
    what = "device time of a step: " if per_device else ""
    return f"{what}baseline {here}; best {there} ({change:+.0%}): {bubbles}, {memory}"


def _no_setting(found: SearchResult) -> str:
    """The reason why no setting can be tried: no widths give the number of devices asked for."""
    wanted, sketch = found.devices, found.baseline.sketch
    near: dict[int, Values] = {}  # of each number the first setting, which is nearest to the defaults
    for values, count in sketch.settings_with_devices(range(1, 2 * wanted[-1] + 1)):
        near.setdefault(count, values)
    asked = counted(wanted[0], "device") if len(wanted) == 1 else f"{wanted[0]} to {wanted[-1]} devices"
    none = f"no setting of {sketch.name} takes {asked}"
    if not near:
        fixed = " ".join(f"{name}={value}" for name, value in sketch.fixed.items())
        return f"{none} with {fixed}" if fixed else none
    nearest = min(near, key=lambda count: min(abs(count - n) for n in (wanted[0], wanted[-1])))
    words = " ".join(f"{name}={value}" for name, value in near[nearest].items())
    return f"{none}; the nearest is {nearest} with {words or 'its defaults'}"


def _notes(found: SearchResult, cluster: Cluster) -> Iterator[str]:
    again = "".join(f", {count} with {change}" for change, count in found.changed.items())
    yield f"{counted(found.settings, 'setting')} in {found.seconds:.1f} s: {found.simulated} simulated{again}"
    counts = {
        "refused": found.refused,
        "for another number of devices": found.elsewhere,
        "too large for the memory by their weights and one micro-batch": found.cannot_fit,
        "not simulated, whose bounds are not below the best": found.beaten,
        f"left, {'not simulated' if found.best is None else 'whose bounds are below the best'}": found.left,
    }
    if any(counts.values()):
        yield "; ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    for diagnostic, count in found.reasons[:3]:
        mend = f"; {diagnostic.text(diagnostic.help)}" if found.best is None and diagnostic.help else ""
        such = ", such as" if count > 1 else ""
        yield f"{count:,} refused by {diagnostic.code}{such}: {diagnostic.text(diagnostic.title)}{mend}"
    if over := found.over:
        nearest = "; ".join(f"{t.sketch.name} {t.setting.words} by {size(t.over_bytes)}" for t in over[:OVER_SHOWN])
        yield f"out of memory: {len(over)}, the nearest {nearest}"
    elif found.best is None and (miss := found.miss) is not None:
        more = size(miss.over_bytes)
        yield f"the nearest, {miss.sketch.name} {miss.setting.words}, needs at least {more} more on a device"
    for tried in found.unproved:
        yield f"a bug of ssdsl, please report it: {tried.sketch.name} {tried.setting.words}: {tried.unproved}"
    if (best := found.best) is not None:
        if best.report.kernels is not Kernels.EAGER:
            yield KERNELS[best.report.kernels]
        yield _error_bar(found, best, cluster)
    for sketch in found.sketches:
        opened = "; ".join(f"{p.name} in {listed(p.tried)} ({p.why})" for p in sketch.open) or "nothing"
        fixed = "".join(f", {param} = {value}" for param, value in sketch.fixed.items())
        yield f"{_name(sketch, found)}: open: {opened}{'; fixed' if fixed else ''}{fixed.removeprefix(',')}"
        yield from (f"{d.code} {d.span}: {d.text(d.title)}; {d.text(d.help)}" for d in sketch.elsewhere)
    yield "for the sizes of this example's batch"


def _error_bar(found: SearchResult, best: Tried, cluster: Cluster) -> str:
    if cluster.error is None:
        return f"how wrong simulated steps are on {cluster.name} is unknown"
    bar = cluster.error.step
    known = f"simulated steps are up to {bar:.0%} wrong there ({cluster.error.source})"
    others = sum(t.setting.value <= best.setting.value * (1 + bar) for t in found.ranked) - 1
    equal = f"{others + 1} plans count as equal" if others else "no other plan counts as equal"
    return f"{known}: {equal}"


def pareto_text(found: SearchResult, width: int) -> str:
    """A plot in characters of device-seconds, or of cost, against memory, for all simulated plans: `B` is the baseline,
    `*` the best."""
    points = [_point(t) for t in found.tried if t.setting.report is not None]
    named = {"B": found.baseline, "*": found.best}
    marked = [(m, *_point(t)) for m, t in named.items() if t and t.setting.report is not None]
    by_cost = found.baseline.setting.by is By.COST
    across = "what a step costs" if by_cost else "device-seconds of a step (step x devices)"
    return scatter(points, marked, width, across, "memory of the fullest device")


def _point(tried: Tried) -> tuple[float, float]:
    return tried.setting.value, tried.report.peak_bytes


def search_json(found: SearchResult, graph: Graph, cluster: Cluster, top: int) -> dict[str, Any]:
    """The search as JSON; docs/json.md lists the keys."""

    def keys(tried: Tried) -> dict[str, Any]:
        figures = row(tried, found, graph)
        del figures["setting"]
        cost = tried.setting.device_s if tried.setting.report is not None else None
        own = {"params": dict(tried.setting.params), "family": tried.family, "device_s": cost}
        own |= {"cut": PlanChange.CUTS in tried.changes, "ordered": PlanChange.ORDER in tried.changes}
        own |= {"sliced": PlanChange.SLICES in tried.changes}
        return figures | own | {"over_bytes": tried.over_bytes}

    best = found.best
    return {
        "version": VERSION,
        "cluster": cluster.name,
        "settings": found.settings,
        "simulated": found.simulated,
        "refused": found.refused,
        "reasons": [{"code": d.code, "message": d.text(d.title), "settings": n} for d, n in found.reasons],
        "other_devices": found.elsewhere,
        "cannot_fit": found.cannot_fit,
        "beaten": found.beaten,
        "left": found.left,
        "bound_device_s": found.bound_s if found.left else None,
        "seconds": found.seconds,
        "step_error": cluster.error.step if cluster.error is not None else None,
        "baseline": keys(found.baseline),
        "best": keys(best) if best is not None else None,
        "rows": [keys(t) for t in found.ranked[:top]],
        "families": [keys(t) for t in found.best_of_families()],
        "over": [keys(t) for t in found.over],
        "unproved": [keys(t) for t in found.unproved],
        "notes": notes(found, best) if best is not None else {},
    }
