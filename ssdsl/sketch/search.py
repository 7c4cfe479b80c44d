"""The search over settings of sketches: simulates the promising ones, and proves those that it shows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.identity import ByIdentity, distinct
from ssdsl.ir.program import Kernels
from ssdsl.lang.suggest import joined
from ssdsl.model.graph import Graph
from ssdsl.plan.model_index import index_model
from ssdsl.record import replace
from ssdsl.simulate.profile.read_costs import CostsFile
from ssdsl.sketch.answers.choices import OpenChoices
from ssdsl.sketch.bounds.ahead import Ahead
from ssdsl.sketch.by import By
from ssdsl.sketch.deadline import Deadline, TimeIsUp
from ssdsl.sketch.errors import NoPrice, TooManySettings
from ssdsl.sketch.looks import Look, Looks
from ssdsl.sketch.refinements import Refinements
from ssdsl.sketch.result import PlanChange, SearchResult, Tried
from ssdsl.sketch.setting import Setting
from ssdsl.sketch.simulations import Simulations, open_values
from ssdsl.sketch.sketch import Sketch, Values, sketch_of, unknown_params
from ssdsl.sketch.texts import Texts
from ssdsl.solve.grid import Grid, Point, Worth
from ssdsl.text.diagnostic import Diagnostic, PlanError

TRIES = 100  # simulations
MOST = 20_000  # settings


def search_of(
    graph: Graph,
    cluster: Cluster,
    texts: Texts,
    devices: range,
    asked: Mapping[str, Sequence[int]],
    state: StatePrecision = MIXED,
    memory: float = 1.0,
    costs: CostsFile | None = None,
    kernels: Kernels = Kernels.EAGER,
    by: By = By.DEVICES,
) -> "Search":
    """The search over these texts. `asked` are numbers that the user sets for params, `costs` measured times of
    operators. Raises PlanError if a param is set that no plan has, or if a search by cost has no price."""
    if by is By.COST and cluster.price is None:
        raise PlanError(NoPrice(None, cluster.name))
    model = index_model(graph)
    sketches = {path: sketch_of(source, path.parent, model, devices, asked) for path, source in texts.all.items()}
    if wrong := unknown_params(asked, [sketch.script for sketch in sketches.values()]):
        raise PlanError(*wrong)
    searched = [sketches[path] for path in texts.searched]
    return Search(graph, cluster, searched, sketches[texts.baseline[0]], devices, state, memory, costs, kernels, by)


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
    kernels: Kernels = Kernels.EAGER
    by: By = By.DEVICES
    _simulations: Simulations = field(init=False)
    _refinements: Refinements = field(init=False)
    _looks: Looks = field(init=False)
    _ahead: Ahead = field(init=False)
    _deadline: Deadline = field(default_factory=Deadline)
    _tried: dict[Point, Tried] = field(default_factory=dict)
    _families: dict[Point, str] = field(default_factory=dict)
    _refusals: dict[str, list[Diagnostic]] = field(default_factory=dict)
    _cannot_fit: int = 0  # this and the next two: as in SearchResult
    _miss: Tried | None = None
    _elsewhere: int = 0
    _shown: int = 0  # so many of the best are proved at last

    def __post_init__(self) -> None:
        self._simulations = Simulations(
            self.graph, self.cluster, self.state, self.memory, self.costs, self.kernels, self.by
        )
        self._refinements = Refinements(self._simulations)
        about = self.sketches, self.devices, self.state, self.memory, self.costs is not None, self.kernels, self.by
        self._looks = Looks(self._simulations.workspace.model, self.cluster, *about)

    def results(
        self, tries: int = TRIES, seconds: float = float("inf"), orders: bool = True, shown: int = 0
    ) -> Iterator[SearchResult]:
        """The result so far after each simulation; the last is the answer. With `orders`, other cuts and orders are
        tried as well. No simulation is begun that would end after `seconds` if it takes as long as the last few, and
        if the `shown` best are proved then. Raises PlanError if too many settings are open."""
        self._shown = shown
        last: SearchResult | None = None
        for last in self.run(tries, seconds):
            yield last
        if orders and last is not None:
            yield from self.refined(last)

    def run(self, tries: int = TRIES, seconds: float = float("inf")) -> Iterator[SearchResult]:
        """The result so far after each simulation; the first has only the baseline, the last is the answer. Raises
        PlanError where too many settings are open."""
        self._deadline.begin(seconds)
        points = [(number, *values.values()) for number, values in islice(self._settings(), MOST + 1)]
        if len(points) > MOST:
            raise PlanError(self._too_many())
        base = self._simulations.simulated(self.baseline, self.baseline.default)
        self._deadline.took(base, self._deadline.spent)

        def found(left: int, bound: float) -> SearchResult:
            reasons = tuple((those[0], len(those)) for those in self._refusals.values())
            return SearchResult(
                sketches=tuple(self.sketches),
                baseline=base,
                tried=(*self._tried.values(),),
                settings=len(points),
                cannot_fit=self._cannot_fit,
                elsewhere=self._elsewhere,
                left=left,
                bound_s=bound,
                seconds=self._deadline.spent,
                devices=self.devices,
                reasons=reasons,
                miss=self._miss,
            )

        yield found(len(points), 0.0)
        self._ahead = Ahead(self._looks.at)
        look, nearer = (partial(self._look, is_near) for is_near in (False, True))
        asked = look, self._measure, self._families.__getitem__, nearer if self.costs is None else None
        search = Grid(*asked, self._soon)
        try:
            for _ in search.answers(points):
                yield self._with_proofs(found(search.left, search.least))
                if len(self._tried) >= tries:
                    return
        except TimeIsUp:
            pass
        finally:
            self._ahead.close()
        yield found(search.left, search.least)

    def refined(self, found: SearchResult) -> Iterator[SearchResult]:
        """The result, and after each simulation the result with other cuts and other orders for pipelines that leave
        these open: tried for the best plan of each kind, if they could make it the best of all. The last is the
        answer."""
        yield found
        changed = self._refinements.of(found)
        with suppress(TimeIsUp):
            while (tried := self._deadline.timed(lambda: next(changed, None))) is not None:
                found = self._with_proofs(replace(found, tried=(*found.tried, tried)))
                yield found

    def opened_choices(self, found: SearchResult) -> OpenChoices | None:
        """What the numbers of a choice change in each turn, around the best plan of those without other changes; None
        if it leaves no choices open."""
        best = found.best
        if best is None:
            return None
        plain = next((t for t in found.tried if t.key == best.key and not t.changes), best)
        return self._refinements.choices.of(plain.sketch, open_values(plain))

    def proved(self, found: SearchResult, wanted: int) -> SearchResult:
        """The result with proofs of the shown plans: the baseline, the best few and the best of each family. Refuted
        plans are dropped, and the next ones take their places."""
        found = replace(found, baseline=self._simulations.proved(found.baseline))
        while True:
            asked = ByIdentity((t, self._simulations.proved(t)) for t in distinct(_rows(found, wanted)))
            found = replace(found, tried=tuple(asked.get(t, t) for t in found.tried))
            if all(t.unproved is None for t in asked.values()):
                return found

    def _with_proofs(self, found: SearchResult) -> SearchResult:
        """The result; the deadline is told what of it has to be proved."""
        self._deadline.expect_proofs((found.baseline, *_rows(found, self._shown)), self._simulations.believed)
        return found

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
        TimeIsUp."""
        self._deadline.check()
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
        no worth. Raises TimeIsUp."""
        self._tried[point] = tried = self._deadline.timed(lambda: self._simulated(point))
        if tried.setting.refused is not None:
            self._refused(tried.setting.refused)
            return None
        found_order = PlanChange.ORDER in tried.changes  # it takes the memory that there is, or more if none fits
        share = (tried.setting.filled or 0.0) / self.memory
        return None if tried.unproved else Worth(tried.setting.value, share, takes_what_is_there=found_order)

    def _simulated(self, point: Point) -> Tried:
        """A simulated point, proved if it beats all before it."""
        tried = self._refinements.ordered(*self._looks.values(point))
        best = min((t.cost for t in self._tried.values() if t.fits and t.unproved is None), default=None)
        return self._simulations.proved(tried) if tried.fits and (best is None or tried.cost < best) else tried


def _rows(found: SearchResult, wanted: int) -> tuple[Tried, ...]:
    """The plans that are shown, beside the baseline."""
    return *found.ranked[:wanted], *found.best_of_families()
