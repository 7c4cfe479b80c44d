"""What `ssdsl sweep` prints: a plan under many settings of its params, each simulated, in one table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ssdsl.show.report import capacity_share, largest_peak, over_bytes
from ssdsl.show.view import Column, Kind, View, size
from ssdsl.simulate.report import Report
from ssdsl.text.diagnostic import Diagnostic

VERSION = 1  # of the keys of `sweep_json`
FIGURES = (
    Column("step", Kind.SECONDS, "bold"),
    Column("bubble", Kind.SHARE),
    Column("peak memory", Kind.BYTES),
    Column("of capacity", Kind.SHARE, drop=2),
    Column("traffic", Kind.BYTES, drop=3),
    Column("devices", Kind.COUNT),
    Column("device-s", Kind.SECONDS, drop=1),
    Column("note"),
)
NOTE = "best: of those that fit, the fewest device-s (step x devices); traffic: of all devices in a step"
OVER = "over: a device needs so much more memory than it has"


@dataclass(frozen=True, slots=True)
class Setting:
    """A plan under some values of its params: the simulated step, or why the compiler refuses it."""

    params: Mapping[str, int]
    report: Report | None = None
    refused: Diagnostic | None = None

    @property
    def over(self) -> int:
        """By how many bytes the fullest device has too little memory."""
        return max((over_bytes(d) for d in self.report.devices), default=0) if self.report else 0

    @property
    def filled(self) -> float | None:
        """The share of its memory that the fullest device needs."""
        shares = [s for d in self.report.devices if (s := capacity_share(d)) is not None] if self.report else []
        return max(shares, default=None)

    @property
    def figures(self) -> tuple[float | None, ...]:
        """Step time, bubble, peak memory, its share of the capacity, traffic of all devices, devices, and the time of
        all of them together."""
        if (report := self.report) is None:
            return (None,) * 7
        traffic = sum(t.size_bytes for t in report.traffic)
        return report.step_s, report.bubble, largest_peak(report), self.filled, traffic, self.devices, self.device_s

    @property
    def devices(self) -> int:
        """How many devices the plan runs on."""
        return sum(len(d.ranks) for d in self.report.devices) if self.report else 0

    @property
    def device_s(self) -> float:
        """Seconds of all devices in a step: all settings compute the same one, so that the fewest are the best use."""
        return self.report.step_s * self.devices if self.report else 0.0

    @property
    def words(self) -> str:
        """`T=2 M=8`."""
        return " ".join(f"{name}={value}" for name, value in self.params.items())


def best_of(settings: tuple[Setting, ...]) -> Setting | None:
    """The one that fits and takes the fewest device-seconds; of equal ones that of the shortest step, then of the least
    memory."""
    fit = [s for s in settings if s.report and not s.over]
    return min(fit, key=lambda s: (s.device_s, s.figures[0], s.figures[2]), default=None)


def sweep_view(title: str, settings: tuple[Setting, ...]) -> View:
    """A row per setting, in the order of the settings."""
    best = best_of(settings)
    names = dict.fromkeys(name for s in settings for name in s.params)
    columns = (*(Column(name, Kind.COUNT, "bold cyan", key=name) for name in names), *FIGURES)
    rows = tuple((*s.params.values(), *s.figures, note(s, best)) for s in settings)
    none = () if best is not None else ("no setting fits",)
    over = (OVER,) if any(s.over for s in settings) else ()
    return View(title, columns, rows, (*none, *_refusals(settings), NOTE, *over))


def note(setting: Setting, best: Setting | None, in_full: bool = False) -> str:
    """What a row ends with; `in_full` with the reason of a refusal."""
    if (d := setting.refused) is not None:
        return f"{d.code}: {d.text(d.title)}" if in_full else d.code
    if setting.over:
        return f"over by {size(setting.over)}"
    return "best" if setting is best else ""


def _refusals(settings: tuple[Setting, ...]) -> Iterator[str]:
    """Each reason once, with the first setting of which it is said."""
    found: dict[str, list[Setting]] = {}
    for setting in settings:
        if (d := setting.refused) is not None:
            found.setdefault(f"{d.code}: {d.text(d.title)}", []).append(setting)
    for reason, those in found.items():
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        yield f"{reason} ({those[0].words}{more})"


def sweep_json(plan: str, cluster: str, settings: tuple[Setting, ...]) -> dict[str, Any]:
    """The same as numbers; docs/json.md lists the keys."""
    best = best_of(settings)
    return {
        "version": VERSION,
        "plan": plan,
        "cluster": cluster,
        "best": dict(best.params) if best is not None else None,
        "settings": [_json(s) for s in settings],
    }


def _json(setting: Setting) -> dict[str, Any]:
    keys = ("step_s", "bubble", "peak_bytes", "capacity_share", "traffic_bytes", "devices", "device_s")
    refused = setting.refused
    return {
        "params": dict(setting.params),
        **dict(zip(keys, setting.figures, strict=True)),
        "mfu": setting.report.mfu if setting.report is not None else None,
        "over_bytes": setting.over if setting.report is not None else None,
        "refused": {"code": refused.code, "message": refused.text(refused.title)} if refused is not None else None,
    }
