"""The result of a search: the settings that were tried, and which of them are the best."""

from collections import Counter
from collections.abc import Hashable, Mapping
from enum import StrEnum

from ssdsl.record import Record
from ssdsl.simulate.report import Report
from ssdsl.sketch.setting import Setting
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.text.diagnostic import Diagnostic


class PlanChange(StrEnum):
    """A change that a search makes to a plan beside its params."""

    CHOICES = "a branch for each layer"
    CUTS = "other cuts"
    SLICES = "other slices"
    ORDER = "another order"


class Tried(Record):
    """A setting of a sketch that was simulated, refused, or cannot fit.

    `opened` are the values of the params that the sketch leaves open. `over_bytes` is how much more the fullest device
    needs than it may use. `unproved` is the proof's objection to a compiled program, which is a bug of the compiler.
    """

    sketch: Sketch
    opened: Mapping[str, int]
    setting: Setting
    family: str = ""
    over_bytes: int = 0
    changes: tuple[PlanChange, ...] = ()  # made to the sketch
    unproved: Diagnostic | None = None
    as_fast: float = 1.0  # times the step of a plan that compresses more, which it may take and is preferred

    @property
    def key(self) -> Hashable:
        """Equal for two plans of one sketch with the same values."""
        return self.sketch.file, *self.opened.items()

    @property
    def values(self) -> Values:
        """The plan's params: those that the search chose, and those that the user set."""
        return {**self.sketch.overrides(self.opened), **self.setting.params}

    @property
    def report(self) -> Report:
        """The simulated step of a setting that was not refused."""
        assert self.setting.report is not None
        return self.setting.report

    @property
    def fits(self) -> bool:
        """Whether all devices have enough memory."""
        return self.setting.report is not None and not self.over_bytes

    @property
    def cost(self) -> tuple[float, float]:
        """What settings are ranked by, and the seconds of a step: the better of two that fit has the lower one."""
        return self.setting.value / self.as_fast, self.report.step_s / self.as_fast


class SearchResult(Record):
    """The result of a search, so far or final.

    `sketches` were searched, `tried` were simulated, in this order. The best is the one that fits and takes the fewest
    device-seconds. `settings` is the number of settings that the sketches leave open. Of these, `reasons` counts the
    refused ones, each with its diagnostic; `cannot_fit` need more memory than there is for their weights and one
    micro-batch (`miss` is the nearest to fit); `elsewhere` take another number of devices; `left` may still beat the
    best by their bounds, and none of these takes less than `bound_s` device-seconds.
    """

    sketches: tuple[Sketch, ...]
    baseline: Tried
    tried: tuple[Tried, ...]
    settings: int
    cannot_fit: int
    elsewhere: int
    left: int
    bound_s: float
    seconds: float
    devices: range
    reasons: tuple[tuple[Diagnostic, int], ...] = ()
    miss: Tried | None = None

    @property
    def simulated(self) -> int:
        """The number of simulated settings; a plan with other cuts, or another order, is no other setting."""
        return len({t.key for t in self.tried if t.setting.report is not None})

    @property
    def changed(self) -> Counter[PlanChange]:
        """The number of simulated plans with each change, beside the plan without it."""
        plain = {t.key for t in self.tried if not t.changes}
        return Counter(t.changes[-1] for t in self.tried if t.changes and t.key in plain)

    @property
    def refused(self) -> int:
        """The number of refused settings."""
        return sum(count for _, count in self.reasons)

    @property
    def beaten(self) -> int:
        """The number of settings that were not simulated, as their bounds are not below the best."""
        others = self.simulated + self.refused + self.cannot_fit + self.elsewhere + self.left
        return max(0, self.settings - others)  # a refinement may simulate some of `left`

    @property
    def best(self) -> Tried | None:
        """The best plan that fits and is not refuted; None if there is none."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> tuple[Tried, ...]:
        """All plans that fit and are not refuted, the best first; a changed plan only if it is better than without its
        last change. Of equal plans that one is first whose params have numbers nearer to the front of what is tried,
        where the defaults are."""
        fit = [t for t in self.tried if t.fits and t.unproved is None]
        least = {(t.key, t.changes): t.cost for t in sorted(fit, key=lambda t: -t.cost[0])}

        def is_better(t: Tried) -> bool:
            before = least.get((t.key, t.changes[:-1]))
            return not t.changes or before is None or t.cost < before

        return tuple(sorted(filter(is_better, fit), key=lambda t: (t.cost, self._distance(t))))

    def _distance(self, tried: Tried) -> tuple[int, ...]:
        """The place of each param's number in the list of those that are tried."""
        sketch = next((s for s in self.sketches if s.file == tried.sketch.file), tried.sketch)
        places = ((p.tried, tried.opened.get(p.name)) for p in sketch.open)
        return tuple(known.index(number) if number in known else len(known) for known, number in places)

    @property
    def over(self) -> tuple[Tried, ...]:
        """The plans that need more memory than the devices have, the nearest to fit first."""
        return tuple(sorted((t for t in self.tried if t.over_bytes), key=lambda t: t.over_bytes))

    @property
    def unproved(self) -> tuple[Tried, ...]:
        """The plans that the proof refutes: bugs of ssdsl."""
        return tuple(t for t in (self.baseline, *self.tried) if t.unproved is not None)

    def best_of_families(self) -> tuple[Tried, ...]:
        """The best of each kind of parallelism, the best first."""
        first: dict[str, Tried] = {}
        for tried in self.ranked:
            first.setdefault(tried.family, tried)
        return tuple(first.values())
