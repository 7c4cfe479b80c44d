"""The search over settings of sketches: simulates the promising ones, and proves those that it shows."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from statistics import fmean
from typing import Generic, TypeVar

from ssdsl.cluster.cluster import Cluster
from ssdsl.lang.suggest import joined
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import read_plan
from ssdsl.plan.model_index import index_model
from ssdsl.plan.plan import Plan
from ssdsl.simulate.memory.state import MIXED, StatePrecision
from ssdsl.simulate.profile.read_costs import CostsFile, costs_for
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import Timeline
from ssdsl.sketch.answers import clocks, cuts, orders, widths
from ssdsl.sketch.bounds.ahead import Ahead
from ssdsl.sketch.bounds.looks import Look, Looks
from ssdsl.sketch.errors import TooManySettings
from ssdsl.sketch.family import family
from ssdsl.sketch.result import PlanChange, SearchResult, Tried
from ssdsl.sketch.setting import Setting
from ssdsl.sketch.sketch import Sketch, Values, sketch_of, unknown_params
from ssdsl.sketch.texts import Texts
from ssdsl.solve.grid import Grid, Point, Worth
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.workspace import Candidate, Workspace

TRIES = 100  # simulations
MOST = 20_000  # settings
T = TypeVar("T")
LATEST = 3  # simulations, the longest of which says how long the next one may take
FEW = 5  # the most orders, or cuts, that are simulated for one plan
SMALLER = 0.97  # the factor on the memory for the next one, after one that took too much
WORTH_REFINING = 1.3  # times the best: dearer plans are not refined


def _least_share(report: Report, memory: float) -> float:
    """The share of its activations for which the tightest device has room."""
    shares = []
    for device in report.devices:
        taken = dict(device.peak_parts).get("activations", 0)
        if device.capacity_bytes and taken:
            room = memory * device.capacity_bytes - (device.peak_bytes - taken)
            shares.append(max(0.05, room / taken))
    return min(shares, default=1.0)


def _without_waits(tried: Tried, of: Callable[[Sequence[float]], float]) -> float:
    """The device-seconds of a step in which devices wait less by what all of them wait: by the least (`min`), which
    another order may leave out, or by the mean, if other cuts make all work equally long."""
    return tried.cost[0] * (1 - of([d.idle_share for d in tried.report.devices for _ in d.ranks]))


Changed = Callable[[Tried, Sequence[Tried]], Sketch | None]  # changes a plan, to need less memory than the given ones


class _TimeIsUp(Exception):
    """The next simulation, and the proofs of the plans that are shown, would end too late."""


@dataclass(slots=True)
class _Last(Generic[T]):
    """Answers for settings of sketches; remembers the last one."""

    make: Callable[[Sketch, Values], T]
    known: tuple[Sketch, Values, T] | None = None

    def of(self, sketch: Sketch, values: Values) -> T:
        """The answer for a setting."""
        if self.known is None or self.known[0] is not sketch or self.known[1] != values:
            self.known = sketch, dict(values), self.make(sketch, values)
        return self.known[2]


def search_of(
    graph: Graph,
    cluster: Cluster,
    texts: Texts,
    devices: range,
    asked: Mapping[str, Sequence[int]],
    state: StatePrecision = MIXED,
    memory: float = 1.0,
    costs: CostsFile | None = None,
) -> "Search":
    """The search over these texts. `asked` are numbers that the user sets for params, `costs` measured times of
    operators. Raises PlanError if a param is set that no plan has."""
    model = index_model(graph)
    sketches = {path: sketch_of(source, path.parent, model, devices, asked) for path, source in texts.all.items()}
    if wrong := unknown_params(asked, list(sketches.values())):
        raise PlanError(*wrong)
    searched = [sketches[path] for path in texts.searched]
    return Search(graph, cluster, searched, sketches[texts.baseline[0]], devices, state, memory, costs)


@dataclass
class Search:
    """A search over sketches for a model on a cluster; it runs once.

    `baseline` is a sketch at its defaults, with which all are compared. The same sketches and number of tries give the
    same answer. With `costs`, steps are simulated by measured times; plans that need operators without one are refused,
    and no plan has a bound.
    """

    graph: Graph
    cluster: Cluster
    sketches: Sequence[Sketch]
    baseline: Sketch
    devices: range
    state: StatePrecision = MIXED
    memory: float = 1.0  # the share of each device's memory that a plan may need
    costs: CostsFile | None = None
    _workspace: Workspace = field(init=False)
    _looks: Looks = field(init=False)
    _ahead: Ahead = field(init=False)
    _widths: widths.WidthFinder = field(init=False)
    _candidates: "_Last[Candidate]" = field(init=False)
    _clocks: "_Last[clocks.OpenClock | None]" = field(init=False)
    _tried: dict[Point, Tried] = field(default_factory=dict)
    _families: dict[Point, str] = field(default_factory=dict)
    _refusals: dict[str, list[Diagnostic]] = field(default_factory=dict)
    _believed: set[tuple[int, tuple[tuple[str, int], ...]]] = field(default_factory=set)  # proved settings
    _cannot_fit: int = 0  # this and the next two: as in SearchResult
    _miss: Tried | None = None
    _elsewhere: int = 0
    _until: float = float("inf")  # the time by which the search ends
    _shown: int = 0  # so many of the best are proved at last
    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))  # seconds of simulations
    _seconds: dict[tuple[int, tuple[tuple[str, int], ...]], float] = field(default_factory=dict)  # by setting
    _proofs_s: float = 0.0

    def __post_init__(self) -> None:
        measured_here = self.costs is not None and self.cluster.shares_cores
        self._workspace = Workspace(self.graph, None if measured_here else self.cluster)  # as the measured runs
        model, is_measured = self._workspace.model, self.costs is not None
        about = self.sketches, self.devices, self.state, self.memory, is_measured
        self._looks = Looks(model, self.cluster, *about)
        self._widths = widths.WidthFinder(model, self.cluster, self.state)
        self._candidates, self._clocks = _Last(self._formed), _Last(self._opened_clock)

    def results(
        self, tries: int = TRIES, seconds: float = float("inf"), orders: bool = True, shown: int = 0
    ) -> Iterator[SearchResult]:
        """The result so far after each simulation; the last is the answer. With `orders`, other cuts and orders are
        tried as well. No simulation is begun that would end after `seconds` if it takes as long as the last few, and
        if the `shown` best are proved then. Raises PlanError where too many settings are open."""
        self._shown = shown
        last: SearchResult | None = None
        for last in self.run(tries, seconds):
            yield last
        if orders and last is not None:
            yield from self.refined(last)

    def run(self, tries: int = TRIES, seconds: float = float("inf")) -> Iterator[SearchResult]:
        """The result so far after each simulation; the first has only the baseline, the last is the answer. Raises
        PlanError where too many settings are open."""
        began = time.monotonic()
        self._until = began + seconds
        points = [(number, *values.values()) for number, values in islice(self._settings(), MOST + 1)]
        if len(points) > MOST:
            raise PlanError(self._too_many())
        base = self._simulated(self.baseline, self.baseline.default)
        self._took(base, time.monotonic() - began)

        def found(left: int, bound: float) -> SearchResult:
            reasons = tuple((those[0], len(those)) for those in self._refusals.values())
            spent = time.monotonic() - began
            return SearchResult(
                sketches=tuple(self.sketches),
                baseline=base,
                tried=(*self._tried.values(),),
                settings=len(points),
                cannot_fit=self._cannot_fit,
                elsewhere=self._elsewhere,
                left=left,
                bound_s=bound,
                seconds=spent,
                devices=self.devices,
                reasons=reasons,
                miss=self._miss,
                beaten=len(points) - self._settled - left,
            )

        yield found(len(points), 0.0)
        self._ahead = Ahead(self._looks.at)
        look, nearer = (partial(self._look, is_near) for is_near in (False, True))
        asked = look, self._measure, self._families.__getitem__, nearer if self.costs is None else None
        search = Grid(*asked, self._soon)
        try:
            for _ in search.answers(points):
                yield self._with_proofs_s(found(search.left, search.least))
                if len(self._tried) >= tries:
                    return
        except _TimeIsUp:
            pass
        finally:
            self._ahead.close()
        yield found(search.left, search.least)

    def refined(self, found: SearchResult) -> Iterator[SearchResult]:
        """The result, and after each simulation the result with other cuts and other orders for pipelines that leave
        these open: tried for the best plan of each kind, if they could make it the best of all. The last is the
        answer."""
        yield found
        refinements = self._refinements(found)
        with suppress(_TimeIsUp):
            while (tried := self._timed(lambda: next(refinements, None))) is not None:
                found = self._with_proofs_s(replace(found, tried=(*found.tried, tried)))
                yield found

    def _refinements(self, found: SearchResult) -> Iterator[Tried]:
        """Other numbers of devices for stages; then for the best plans other cuts, and orders for the better of both.
        Only what has been simulated is known: each plan is yielded when it was."""
        spread = list[Tried]()
        for tried in self._with_widths(found):
            spread.append(tried)
            yield tried
        found = replace(found, tried=(*found.tried, *spread))
        for best in (t for t in found.best_of_families() if t.cost[0] <= WORTH_REFINING * found.ranked[0].cost[0]):
            least = found.ranked[0].cost[0]
            cut = list[Tried]()
            if cuts.is_open(best.sketch) and _without_waits(best, fmean) < least:
                for tried in self._changed(best, PlanChange.CUTS, self._cut):
                    cut.append(tried)
                    yield tried
            better = min((t for t in (best, *cut) if t.fits), key=lambda t: t.cost)
            if _without_waits(better, min) >= least:
                continue
            if orders.is_open(better.sketch):
                yield from self._changed(better, PlanChange.ORDER, self._order)
            elif clocks.is_open(better.sketch):
                yield from self._changed(better, PlanChange.ORDER, self._clock)

    def _with_widths(self, found: SearchResult) -> Iterator[Tried]:
        """For plans that leave open over how many devices each stage goes: other stages for the best setting of each
        number of stages, and for the best setting with each of these numbers. Yields settings that had not been
        simulated as well."""
        for sketch in filter(widths.is_open, found.sketches):
            name = widths.stages_param(sketch)
            known = [t for t in found.tried if t.sketch is sketch and t.setting.report is not None]
            known.sort(key=lambda t: (not t.fits, t.cost))
            first: dict[int | None, Tried] = {}
            for tried in known:
                first.setdefault(tried.opened.get(name), tried)
            counts = next((p.tried for p in sketch.open if p.name == name), ())
            others = [{**t.opened, name: count} for t in known[:1] for count in counts]
            new = (self._simulated(sketch, v) for v in others if all(v != t.opened for t in known))
            for tried in chain(first.values(), new):
                yield from (tried,) if tried not in known else ()
                if tried.setting.report is not None:
                    yield from self._changed(tried, PlanChange.CUTS, self._spread)

    def _changed(self, best: Tried, change: PlanChange, sketched: Changed) -> Iterator[Tried]:
        """Changed plans, until one fits: the memory of each is known after its simulation, and the next is given
        less."""
        over: list[Tried] = []
        shown = best.setting.params if best.changes else best.values  # not those that are fixed as the text says
        while len(over) < FEW and (sketch := sketched(best, over)) is not None:
            if over and sketch.source.text == over[-1].sketch.source.text:
                over.append(over[-1])  # the same plan again; with less memory there may be another one
                continue
            tried = replace(self._simulated(sketch, {}), opened=best.opened, changes=(*best.changes, change))
            chosen = {name: value for name, value in tried.setting.params.items() if name in shown}
            tried = replace(tried, setting=replace(tried.setting, params=chosen))
            yield tried
            if tried.setting.refused is not None or not tried.over_bytes:
                return
            over.append(tried)

    def _cut(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with other cuts; with less memory for each of `over`, which took too much."""
        candidate, model = self.candidate(best.sketch, self._open(best)), self._workspace.model
        program, share = candidate.lowered.program, self.memory * SMALLER ** len(over)
        paths = cuts.cuts_of(candidate.plan, program, best.report, model, self.cluster, self.state, share)
        return None if paths is None else cuts.with_cuts(best.sketch, dict(best.opened), paths)

    def _spread(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with other numbers of devices for its stages, and other cuts; with less memory for each of `over`,
        which took too much."""
        values, share = dict(best.opened), self.memory * SMALLER ** len(over)
        like = self.candidate(best.sketch, self._open(best))
        found = self._widths.of(best.sketch, values, like, best.report, share)
        return None if found is None else widths.with_widths(best.sketch, values, found)

    def _order(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with another order; with less memory for activations for each of `over`, which took too much."""
        own = orders.call_of(best.sketch, self.candidate(best.sketch, self._open(best)).plan)
        if own is None:
            return None
        room = math.prod(SMALLER * min(1.0, _least_share(tried.report, self.memory)) for tried in over)
        schedule = orders.schedule_of(best.report, room, self.memory)
        return None if schedule is None else orders.with_order(best.sketch, dict(best.opened), own, schedule)

    def _clock(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with a clock that all micro-batches share; with less memory for each of `over`, which took too
        much."""
        open_clock = self._clocks.of(best.sketch, self._open(best))
        found = None if open_clock is None else open_clock.clock(self.memory * SMALLER ** len(over), fits=bool(over))
        return None if found is None else clocks.with_clock(best.sketch, dict(best.opened), found)

    def _opened_clock(self, sketch: Sketch, values: Values) -> clocks.OpenClock | None:
        """The open clock of a setting; None if the setting is invalid."""
        with suppress(PlanError):
            return clocks.open_clock(sketch, values, self._workspace.model, self.cluster, self.state)
        return None

    @staticmethod
    def _open(tried: Tried) -> Values:
        """The values that are not in the sketch already."""
        return {name: value for name, value in tried.opened.items() if name not in tried.sketch.set_by_user}

    def proved(self, found: SearchResult, wanted: int) -> SearchResult:
        """The result with proofs of the shown plans: the baseline, the best few and the best of each family. Refuted
        plans are dropped, and the next ones take their places."""
        found = replace(found, baseline=self._proved(found.baseline))
        while True:
            rows = {id(t): t for t in self._rows(found, wanted)}
            asked = {key: self._proved(t) for key, t in rows.items()}
            found = replace(found, tried=tuple(asked.get(id(t), t) for t in found.tried))
            if all(t.unproved is None for t in asked.values()):
                return found

    @property
    def _settled(self) -> int:
        """The number of settings that were simulated, or that a look has excluded."""
        simulated = sum(t.setting.refused is None for t in self._tried.values())
        return simulated + sum(map(len, self._refusals.values())) + self._cannot_fit + self._elsewhere

    # -- points --------------------------------------------------------------------------------------------------------

    def _settings(self) -> Iterator[tuple[int, Values]]:
        """All settings: those of the first sketch first, and of each sketch its defaults first."""
        for number, sketch in enumerate(self.sketches):
            default = sketch.default
            settings = list(islice(sketch.settings(self.devices), MOST + 1))
            for values in sorted(settings, key=lambda v: v != default):
                yield number, values

    def _too_many(self) -> TooManySettings:
        names = joined([f"`{sketch.name}`" for sketch in self.sketches], "and")
        widest = max((p for sketch in self.sketches for p in sketch.open), key=lambda p: len(p.tried))
        return TooManySettings(None, names, MOST, widest.name)

    def _look(self, is_near: bool, point: Point) -> Worth | None:
        """The worth of a point by a look at it; counts points that are refused, elsewhere, or cannot fit. Raises
        _TimeIsUp."""
        self._check_time()
        look: Look = self._ahead.ask((is_near, point))
        self._elsewhere += look.elsewhere
        if look.refused is not None:
            self._refused(look.refused)
        if look.family:
            self._families[point] = look.family
        if look.worth is not None and look.worth.share > 1:
            self._cannot_fit += 1
            sketch, values = self._looks.values(point)
            miss = Tried(sketch, values, Setting(values), over_bytes=look.over_bytes)
            self._miss = min(self._miss or miss, miss, key=lambda m: m.over_bytes)
        return look.worth

    def _soon(self, is_near: bool, points: Iterable[Point]) -> None:
        """Names points that are likely to be looked at next."""
        self._ahead.soon((is_near, point) for point in points)

    def _refused(self, why: Diagnostic) -> None:
        self._refusals.setdefault(why.code, []).append(why)

    def _measure(self, point: Point) -> Worth | None:
        """The worth of a point by simulation. A setting that beats all before it is proved at once: a refuted one has
        no worth."""
        tried = self._timed(lambda: self._simulated_point(point))
        self._tried[point] = tried
        if tried.setting.refused is not None:
            self._refused(tried.setting.refused)
            return None
        found_order = PlanChange.ORDER in tried.changes  # it takes the memory that there is, or more if none fits
        share = (tried.setting.filled or 0.0) / self.memory
        return None if tried.unproved else Worth(tried.setting.device_s, share, takes_what_is_there=found_order)

    def _simulated_point(self, point: Point) -> Tried:
        """A simulated point, proved if it beats all before it."""
        tried = self._ordered(*self._looks.values(point))
        best = min((t.cost for t in self._tried.values() if t.fits and t.unproved is None), default=None)
        return self._proved(tried) if tried.fits and (best is None or tried.cost < best) else tried

    def _ordered(self, sketch: Sketch, values: Values) -> Tried:
        """A simulated setting. A plan without an order gets one that is found for it, unless the compiler's own is
        faster and fits: then less memory is left than a clock would need. If no such plan fits, the first one is
        returned, because the later ones gave up speed for memory in vain."""
        own = self._simulated(sketch, values)
        if clocks.is_without_order(sketch):
            plain = Tried(sketch, values, Setting(values))
            tried = [t for t in self._changed(plain, PlanChange.ORDER, self._clock) if t.setting.refused is None]
            if tried:
                found = next((t for t in tried if t.fits), tried[0])
                return own if own.fits and not (found.fits and found.cost <= own.cost) else found
        return own

    def _simulated(self, sketch: Sketch, values: Values) -> Tried:
        """A simulated setting, or a refused one. Its timeline is simulated again when it is asked for."""
        known = sketch.overrides(values)
        words = {name: known[name] for name in sketch.script.params if name in known}
        try:
            plan, report = self._step(sketch, values, words)
        except PlanError as error:
            return Tried(sketch, values, Setting(words, refused=error.diagnostics[0]))

        def timeline() -> Timeline:
            return self._step(sketch, values, words)[1].timeline

        over = [d.peak_bytes - int(self.memory * d.capacity_bytes) for d in report.devices if d.capacity_bytes]
        setting = Setting(words, replace(report, draw=timeline))
        return Tried(sketch, values, setting, family(plan), max(0, *over, 0))

    def _step(self, sketch: Sketch, values: Values, words: Mapping[str, int]) -> tuple[Plan, Report]:
        """The plan of a setting, and its simulated step. Raises PlanError."""
        candidate, times = self.candidate(sketch, values), None
        if self.costs is not None:
            setting = ",".join([sketch.source.name, *(f"{name}={value}" for name, value in words.items())])
            record = f"ssdsl profile --model {self.graph.name} {setting} --out {self.costs.file}"
            times = costs_for(candidate.lowered.program, self.costs, record)
        return candidate.plan, self._workspace.simulate(candidate, self.cluster, times, self.state)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _check_time(self) -> None:
        """Raises _TimeIsUp if a simulation that takes as long as the longest of the last few, and the proofs of what is
        shown, would end too late."""
        if time.monotonic() + max(self._latest, default=0.0) + self._proofs_s > self._until:
            raise _TimeIsUp

    def _timed(self, simulated: Callable[[], T]) -> T:
        """The next simulated plan, whose seconds are noted. Raises _TimeIsUp."""
        self._check_time()
        began, tried = time.monotonic(), simulated()
        if isinstance(tried, Tried):
            self._took(tried, time.monotonic() - began)
        return tried

    def _took(self, tried: Tried, seconds: float) -> None:
        self._latest.append(seconds)
        self._seconds[self._key(tried)] = seconds

    def _with_proofs_s(self, found: SearchResult) -> SearchResult:
        """Notes how long the proofs of what is shown of a result may take: no longer than the simulations did."""
        keys = dict.fromkeys(map(self._key, (found.baseline, *self._rows(found, self._shown))))
        self._proofs_s = sum(self._seconds.get(key, 0.0) for key in keys if key not in self._believed)
        return found

    @staticmethod
    def _rows(found: SearchResult, wanted: int) -> tuple[Tried, ...]:
        """The plans that are shown, beside the baseline."""
        return *found.ranked[:wanted], *found.best_of_families()

    @staticmethod
    def _key(tried: Tried) -> tuple[int, tuple[tuple[str, int], ...]]:
        return id(tried.sketch), tuple(tried.opened.items())

    def _proved(self, tried: Tried) -> Tried:
        """The same setting, or with the proof's objection."""
        key = self._key(tried)
        if tried.setting.refused is not None or key in self._believed:
            return tried
        try:
            self._workspace.proved(self.candidate(tried.sketch, self._open(tried)))
        except PlanError as error:
            return replace(tried, unproved=error.diagnostics[0])
        self._believed.add(key)
        return tried

    def candidate(self, sketch: Sketch, values: Values) -> Candidate:
        """The unproved program of a setting; remembers the last one. Raises PlanError."""
        return self._candidates.of(sketch, values)

    def _formed(self, sketch: Sketch, values: Values) -> Candidate:
        reading = read_plan(sketch.script, self._workspace.model, sketch.overrides(values), sketch.folder, most=1)
        return self._workspace.formed(reading)
