"""Changes plans that were found beyond their params: other numbers of devices for stages, other cuts, another order."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from statistics import fmean

from ssdsl.record import replace
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.report import DeviceReport, Report
from ssdsl.sketch.answers import choices, clocks, cuts, orders, slices, widths
from ssdsl.sketch.result import PlanChange, SearchResult, Tried
from ssdsl.sketch.setting import Setting
from ssdsl.sketch.simulations import LastAnswer, Simulations, open_values
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.text.diagnostic import PlanError

FEW = 5  # the most orders, or cuts, that are simulated for one plan
SMALLER = 0.97  # the factor on the memory for the next one, after one that took too much
AS_FAST = 1.005  # times a step: one that is no longer
WORTH_REFINING = 1.3  # times the best: dearer plans are not refined

Changed = Callable[[Tried, Sequence[Tried]], Sketch | None]  # changes a plan, to need less memory than the given ones


class Refinements:
    """Finds changed plans, and simulates each."""

    def __init__(self, simulations: Simulations) -> None:
        self.simulations = simulations
        self.model, self.cluster = simulations.workspace.model, simulations.cluster
        self.state, self.memory = simulations.state, simulations.memory
        self.kernels = simulations.kernels
        self.widths = widths.WidthFinder(self.model, self.cluster, self.state, self.kernels)
        self.clocks = LastAnswer(self._opened_clock)
        self.choices = LastAnswer(self._opened_choices)

    def of(self, found: SearchResult) -> Iterator[Tried]:
        """Other numbers of devices for stages; then for the best plans other cuts, and orders for the better of both.
        Only what has been simulated is known: each plan is yielded when it was."""
        spread = list[Tried]()
        for tried in self._with_widths(found):
            spread.append(tried)
            yield tried
        found = replace(found, tried=(*found.tried, *spread))
        chosen = list[Tried]()
        for tried in self._with_branches(found):
            chosen.append(tried)
            yield tried
        found = replace(found, tried=(*found.tried, *chosen))
        for best in (t for t in found.best_of_families() if slices.is_open(t.sketch)):
            yield from self._changed(best, PlanChange.SLICES, self._slice)
        if not found.ranked:
            return
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

    def ordered(self, sketch: Sketch, values: Values) -> Tried:
        """A simulated setting. A plan without an order gets one that is found for it, unless the compiler's own is
        faster and fits: then less memory is left than a clock would need. If no such plan fits, the first one is
        returned, because the later ones gave up speed for memory in vain."""
        own = self.simulations.simulated(sketch, values)
        if clocks.is_without_order(sketch):
            plain = Tried(sketch, values, Setting(values))
            tried = [t for t in self._changed(plain, PlanChange.ORDER, self._clock) if t.setting.refused is None]
            if tried:
                found = next((t for t in tried if t.fits), tried[0])
                return own if own.fits and not (found.fits and found.cost <= own.cost) else found
        return own

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
            new = (self.simulations.simulated(sketch, v) for v in others if all(v != t.opened for t in known))
            for tried in chain(first.values(), new):
                yield from (tried,) if tried not in known else ()
                if tried.setting.report is not None:
                    yield from self._changed(tried, PlanChange.CUTS, self._spread)

    def _with_branches(self, found: SearchResult) -> Iterator[Tried]:
        """A branch for each layer, for the best plan of each kind that leaves branches open, and for the nearest to fit
        of those that would be faster."""
        least = found.ranked[0].cost[0] if found.ranked else math.inf
        best = [t for t in found.best_of_families() if t.cost[0] <= WORTH_REFINING * least]
        faster = [t for t in found.over if t.cost[0] < least][:FEW]
        for tried in (t for t in (*best, *faster) if choices.is_open(t.sketch)):
            yield from self._changed(tried, PlanChange.CHOICES, self._choose)

    def _changed(self, best: Tried, change: PlanChange, sketched: Changed) -> Iterator[Tried]:
        """Changed plans, until one fits: the memory of each is known after its simulation, and the next is given
        less."""
        over: list[Tried] = []
        shown = best.setting.params if best.changes else best.values  # not those that are fixed as the text says
        while len(over) < FEW and (sketch := sketched(best, over)) is not None:
            if over and sketch.source.text == over[-1].sketch.source.text:
                over.append(over[-1])  # the same plan again; with less memory there may be another one
                continue
            tried = self.simulations.simulated(sketch, {})
            tried = replace(
                tried, opened=best.opened, changes=(*best.changes, change), as_fast=self._as_fast(best, change)
            )
            chosen = {name: value for name, value in tried.setting.params.items() if name in shown}
            tried = replace(tried, setting=replace(tried.setting, params=chosen))
            yield tried
            if tried.setting.refused is not None or not tried.over_bytes:
                return
            over.append(tried)

    def _as_fast(self, best: Tried, change: PlanChange) -> float:
        if change is PlanChange.CHOICES and (found := self.choices.of(best.sketch, open_values(best))) is not None:
            return AS_FAST if found.compresses else best.as_fast
        return best.as_fast

    # -- changes -------------------------------------------------------------------------------------------------------

    def _choose(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with a branch for each layer; with as much less memory as each of `over` took too much."""
        values = open_values(best)
        found = self.choices.of(best.sketch, values)
        less = dict[str, float]()
        for device in (device for tried in over for device in tried.report.devices if device.capacity_bytes):
            excess = device.peak_bytes - self.memory * (device.capacity_bytes or 0)
            less[device.name] = less.get(device.name, 0.0) + max(0.0, excess)
        if found is None:
            return None
        branches = found.best(self.memory, less)
        if found.compresses and not over:
            branches = self._loosened(best.sketch, values, found, branches or found.as_it_is)
        if branches is None:
            return None
        others = {name: (values[name],) for name in best.sketch.script.choices if name in values}
        text = choices.with_branches(best.sketch.script, {**others, **branches}, self.model, found.said)
        return best.sketch.answered(text, dict(best.opened))

    def _loosened(
        self, sketch: Sketch, values: Values, found: choices.OpenChoices, branches: dict[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]] | None:
        """The numbers of turns of a plan that compresses, each as early in its list as the step allows without being
        longer: compressed is what needs it. None if that is the plan as it is."""

        def step_s(numbers: choices.Branches) -> float:
            said = {f"{name}@{turn}": n for name, of in numbers.items() for turn, n in enumerate(of)}
            report = self.simulations.simulated(sketch, {**values, **said}).setting.report
            return math.inf if report is None else report.step_s

        limit = AS_FAST * step_s(branches)
        for name, those in found.turns.items():
            for number in those.numbers:
                turns = found.behind(name, branches[name], number)
                count = bisect_left(
                    range(1, len(turns) + 1),
                    True,
                    key=lambda n: step_s(choices.with_number(branches, name, turns[:n], number)) > limit,
                )
                branches = choices.with_number(branches, name, turns[:count], number)
        return None if branches == found.as_it_is else branches

    def _opened_choices(self, sketch: Sketch, values: Values) -> choices.OpenChoices | None:
        """The choices of a setting that have several turns, with what each branch changes; None without such."""
        own = self.simulations.simulated(sketch, values)
        program = self.simulations.candidate(sketch, values).lowered.program
        turns = choices.turns_of(sketch, values, self.model, program, self.cluster)
        if not turns:
            return None
        opened = choices.OpenChoices.of(
            turns, values, own.report, lambda other: self.simulations.simulated(sketch, other).setting.report
        )
        changes = program.plan.altered
        return replace(opened, compresses=changes is not None and bool(changes.compressed))

    def _cut(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with other cuts; with less memory for each of `over`, which took too much."""
        candidate, share = self.simulations.candidate_of(best), self.memory * SMALLER ** len(over)
        program, about = candidate.lowered.program, (self.model, self.cluster, self.state, share)
        paths = cuts.cuts_of(candidate.plan, program, best.report, *about)
        return None if paths is None else cuts.with_cuts(best.sketch, dict(best.opened), paths)

    def _slice(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with slices of other lengths; None if one was tried already."""
        own, values = slices.call_of(best.sketch.script), open_values(best)
        if own is None or over:
            return None
        samples = list[slices.Sample]()
        for count in next((p.tried for p in best.sketch.open if p.name == own.param), ()):
            other = {**values, own.param: count}
            report = self.simulations.simulated(best.sketch, other).setting.report
            if report is not None:
                samples += slices.samples_of(self.simulations.candidate(best.sketch, other).plan, report, own)
        events = best.report.timeline.events
        sequences = {tuple(at for at in e.coordinate if at[0] != own.cut) for e in events if e.coordinate}
        if len(samples) < 3:
            return None
        lengths = slices.lengths_of(samples, len(best.report.devices), len(sequences))
        return slices.with_slices(best.sketch, values, lengths)

    def _spread(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with other numbers of devices for its stages, and other cuts; with less memory for each of `over`,
        which took too much."""
        values, share = dict(best.opened), self.memory * SMALLER ** len(over)
        found = self.widths.of(best.sketch, values, self.simulations.candidate_of(best), best.report, share)
        return None if found is None else widths.with_widths(best.sketch, values, found)

    def _order(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with another order; with less memory for activations for each of `over`, which took too much."""
        own = orders.call_of(best.sketch, self.simulations.candidate_of(best).plan)
        if own is None:
            return None
        room = math.prod(SMALLER * min(1.0, _least_share(tried.report, self.memory)) for tried in over)
        schedule = orders.schedule_of(best.report, room, self.memory)
        return None if schedule is None else orders.with_order(best.sketch, dict(best.opened), own, schedule)

    def _clock(self, best: Tried, over: Sequence[Tried]) -> Sketch | None:
        """The plan with a clock that all micro-batches share; with less memory for each of `over`, which took too
        much."""
        open_clock = self.clocks.of(best.sketch, open_values(best))
        found = None if open_clock is None else open_clock.clock(self.memory * SMALLER ** len(over), fits=bool(over))
        return None if found is None else clocks.with_clock(best.sketch, dict(best.opened), found)

    def _opened_clock(self, sketch: Sketch, values: Values) -> clocks.OpenClock | None:
        """The open clock of a setting; None if the setting is invalid."""
        with suppress(PlanError):
            return clocks.open_clock(sketch, values, self.model, self.cluster, self.state, self.kernels)
        return None


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
    """The device-seconds of a step in which devices wait less by what all of them wait, for others or for messages: by
    the least (`min`), which another order may leave out, or by the mean, if other cuts make all work equally long."""
    step_s = tried.report.step_s or 1.0

    def waits(device: DeviceReport) -> float:
        return device.idle_share + dict(device.exposed_parts)[ExposedPart.MESSAGES] / step_s

    return tried.cost[0] * (1 - of([waits(d) for d in tried.report.devices for _ in d.ranks]))
