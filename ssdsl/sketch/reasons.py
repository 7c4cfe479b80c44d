"""Explains in a phrase why one plan is slower than another: where its devices spend time that the other's do not."""

from collections.abc import Collection

from ssdsl.lang.suggest import counted
from ssdsl.record import Record
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.report import Report
from ssdsl.sketch.answers.clocks import MODULO
from ssdsl.sketch.answers.cuts import CUT
from ssdsl.sketch.answers.schedules import SCHEDULE
from ssdsl.sketch.answers.slices import SLICES
from ssdsl.sketch.result import PlanChange, SearchResult, Tried

SAME = 0.0005  # of a step: plans whose steps differ by less are called equal
LEAST = 0.005  # of a step: smaller differences of one kind of work are no reason
GATHERS = ("all_gather",)
MUCH = 100  # times as many bytes: then the other plan sends hardly anything
WORDS = {"compute": "computes", "exposed": "waits for communication", "optimizer": "updates weights"}
# the functions whose calls in the plan's text contain a change, and the start of a note on the plan without it
WRITTEN: dict[PlanChange, tuple[str, ...]] = {
    PlanChange.CHOICES: (),
    PlanChange.CUTS: (CUT,),
    PlanChange.SLICES: (SLICES,),
    PlanChange.ORDER: (SCHEDULE, MODULO),
}
OWN = {
    PlanChange.CHOICES: "one branch for all layers is",
    PlanChange.CUTS: "stages cut by arithmetic are",
    PlanChange.SLICES: "equal slices are",
    PlanChange.ORDER: "the plan's own order is",
}
WITHOUT = {
    PlanChange.CHOICES: "with one branch for all layers, ",
    PlanChange.CUTS: "in stages cut by arithmetic, ",
    PlanChange.SLICES: "in equal slices, ",
    PlanChange.ORDER: "in the plan's own order, ",
}


class SpentSeconds(Record):
    """The seconds of a step by kind of work, summed over all devices."""

    compute: float
    exposed: float
    gathers: float  # of those exposed
    optimizer: float
    waiting: float

    @property
    def all(self) -> float:
        return self.compute + self.exposed + self.optimizer + self.waiting


def spent(report: Report) -> SpentSeconds:
    """The seconds that all devices spend in a step, by kind. In the rest of the step they wait for each other."""
    compute = exposed = gathers = optimizer = waiting = 0.0
    for device in report.devices:
        ranks = len(device.ranks)
        compute += ranks * device.compute_s
        exposed += ranks * device.exposed_s
        gathers += ranks * dict(device.exposed_parts)[ExposedPart.WEIGHTS]
        optimizer += ranks * device.optimizer_s
        waiting += ranks * max(0.0, report.step_s - device.busy_s - device.exposed_s)
    return SpentSeconds(compute, exposed, gathers, optimizer, waiting)


def reason(report: Report, best: Report) -> str:
    """The largest cost of a plan that the better plan does not have: `bubble 22 %, not 7 %`, `sends 2.1 times as much
    over cluster links`. Empty if there is none."""
    here, there = spent(report), spent(best)
    more = {kind: getattr(here, kind) - getattr(there, kind) for kind in (*WORDS, "waiting")}
    worst = max(more, key=lambda kind: more[kind])
    if more[worst] <= LEAST * there.all:
        return ""
    if worst == "waiting":
        bubble = report.bubble * here.all - best.bubble * there.all  # seconds of all devices
        shares = f"{report.bubble:.0%}", f"{best.bubble:.0%}"
        # the bubble is the reason only if its share grew, and its seconds about as much as the waiting. If not, other
        # devices than the one of the bubble wait, or the step is longer for another reason
        grew = report.bubble > best.bubble and shares[0] != shares[1]
        if grew and more[worst] / 2 <= bubble <= 2 * more[worst]:
            return f"bubble {shares[0]}, not {shares[1]}"
        return _times("waits", here.waiting, there.waiting)
    if worst == "exposed":
        is_gathers = 2 * (here.gathers - there.gathers) > more[worst]  # of weights in parts, after the update
        if level := _level(report, best, GATHERS if is_gathers else ()):
            return level
    return _times(WORDS[worst], getattr(here, worst), getattr(there, worst))


def _times(does: str, here: float, there: float) -> str:
    """`computes 2.1 times as long`, for `here` and `there` in seconds; there, the best plan spends less."""
    if there <= LEAST * here:
        return f"{does}, the best hardly does"
    ratio = here / there
    return f"{does} {ratio:.1f} times as long" if ratio >= 1.2 else f"{does} {ratio - 1:.1%} longer"


def _level(report: Report, best: Report, kinds: Collection[str] = ()) -> str:
    """A phrase about the outermost level of links that carries more than 1.2 times as many bytes; empty if none does.

    It counts communication of these kinds only, if there are any.
    """
    here, there = _by_level(report, kinds), _by_level(best, kinds)
    sends = "gathers" if kinds else "sends"
    for level in reversed(here):
        if here[level] > MUCH * there.get(level, 0):
            return f"{sends} over {level} links, the best hardly does"
        if here[level] > 1.2 * there[level]:
            return f"{sends} {here[level] / there[level]:.1f} times as much over {level} links"
    return ""


def _by_level(report: Report, kinds: Collection[str]) -> dict[str, int]:
    """Bytes sent in a step by the level of links (`node`, `cluster`), the innermost first."""
    found: dict[str, int] = {}
    for traffic in report.traffic:
        if not kinds or traffic.kind in kinds:
            found[traffic.level] = found.get(traffic.level, 0) + traffic.size_bytes
    return found


def notes(found: SearchResult, best: Tried) -> dict[str, str]:
    """Notes on the numbers and changes of the best plan: how much slower the best plan without each is, and why.

    The keys are names of open params, and of the functions whose calls in the plan's text contain a change (`WRITTEN`).
    """
    said = {name: f"{name} = {value}: {_note(found, best, name)}" for name, value in best.opened.items()}
    for number, change in enumerate(best.changes):
        plain, changed = (_with(found, best, best.changes[:end]) for end in (number, number + 1))
        if plain is not None and changed is not None:
            slower, why = plain.setting.value / changed.setting.value - 1, reason(plain.report, changed.report)
            note = f"{OWN[change]} {slower:.1%} slower{', ' if why else ''}{why}"
            said |= dict.fromkeys(WRITTEN[change], note)
    return said


def _with(found: SearchResult, best: Tried, changes: tuple[PlanChange, ...]) -> Tried | None:
    """The tried plan with the same params as `best` and exactly these changes; None if it was not simulated."""
    alike = (t for t in found.ranked if t.sketch.file == best.sketch.file and t.opened == best.opened)
    return next((t for t in alike if t.changes == changes), None)


def _note(found: SearchResult, best: Tried, name: str) -> str:
    """A note on a param: the best plan with another value of it is slower, too large for the memory, or unknown.

    Where that plan lacks a change of the best one, it is compared with the best one's params without the change, unless
    it is better than these.
    """

    def with_another(tried: Tried) -> bool:
        return tried.sketch.file == best.sketch.file and tried.opened[name] != best.opened[name]

    if (other := next(filter(with_another, found.ranked), None)) is not None:
        alike = _with(found, best, other.changes)
        than = best if alike is None or other.cost < alike.cost else alike
        without = next((WITHOUT[change] for change in best.changes if change not in than.changes), "")
        why = reason(other.report, than.report)
        slower = other.setting.value / than.setting.value - 1
        also = ", ".join(f"{n} = {v}" for n, v in other.opened.items() if n != name and v != best.opened[n])
        number = f"{name} = {other.opened[name]}{f' ({also})' if also else ''}"
        if slower < SAME:
            return f"{without}with {number} it is the same"
        # settings that were not simulated may be better than this one, but not than the best
        return f"{without}the best simulated with {number} is {slower:.1%} slower{', ' if why else ''}{why}"
    if (over := next(filter(with_another, found.over), None)) is not None:
        return f"with {name} = {over.opened[name]} a device needs {over.over_bytes / 1e9:.1f} GB more than it has"
    sketch = next(sketch for sketch in found.sketches if sketch.file == best.sketch.file)
    if all(values[name] == best.opened[name] for values in sketch.settings(found.devices)):
        return f"no other number takes {_asked(found.devices)}"
    return "no plan with another number was simulated"


def _asked(devices: range) -> str:
    return counted(devices[0], "device") if len(devices) == 1 else f"{devices[0]} to {devices[-1]} devices"
