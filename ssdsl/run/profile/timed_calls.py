"""The seconds that operators and compiled runs took in a step of a recorded run, by their places in model and plan."""

from collections.abc import Sequence
from statistics import mean

from ssdsl.codegen.origins import Origins
from ssdsl.ir.function import Called, OpPart
from ssdsl.ir.program import Program
from ssdsl.plan.paths import starred_module
from ssdsl.record import Record
from ssdsl.run.profile.recorded_profile import Lines, usual_steps
from ssdsl.run.results import RunResult

FORWARD = "F"


class CallPlace(Record):
    """An operator by its kind, or a compiled run by the name of its function; the module, with `*` for the numbers of
    layers; and the plan's statement that cuts or places it."""

    name: str
    module: str
    plan: str


class TimedCall(Record):
    """The seconds in a step for all calls of a place, on the rank on which they take longest."""

    place: CallPlace
    forward_s: float
    backward_s: float


def timed_calls(program: Program, result: RunResult) -> tuple[TimedCall, ...]:
    """The operators and the compiled runs of a recorded run, those that take longest first. A forward that is computed
    again counts as backward."""
    places = _Places(program)
    found: dict[CallPlace, dict[int, list[tuple[float, float]]]] = {}  # by rank, for each step
    for rank, step in usual_steps(tuple(rank for rank in result.ranks if rank.role in places.lines)):
        spent_s: dict[CallPlace, list[float]] = {}
        for spent in step:
            called = places.lines[rank.role].called(spent) if spent.line else None
            if called is not None:
                seconds = spent_s.setdefault(places.of(rank.role, spent.number, called), [0.0, 0.0])
                seconds[spent.what != FORWARD] += sum(spent.times_s)
        for place, (forward, backward) in spent_s.items():
            found.setdefault(place, {}).setdefault(rank.rank, []).append((forward, backward))
    rows = (TimedCall(place, *max(map(_mean, ranks.values()), key=sum)) for place, ranks in found.items())
    return tuple(sorted(rows, key=lambda row: -row.forward_s - row.backward_s))


def _mean(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return mean(forward for forward, _ in steps), mean(backward for _, backward in steps)


class _Places:
    """The places of what a program's roles call."""

    def __init__(self, program: Program) -> None:
        self.origins = Origins(program)
        self.lines = {role.name: Lines.of(program, role) for role in program.roles if role.actions}
        self._known: dict[tuple[str, int, Called], CallPlace] = {}

    def of(self, role: str, function: int, called: Called) -> CallPlace:
        """The place of an instruction or a compiled run."""
        key = role, function, called
        if key not in self._known:
            self._known[key] = self._of(*key)
        return self._known[key]

    def _of(self, role: str, function: int, called: Called) -> CallPlace:
        if isinstance(called, tuple):
            sites = [self.origins.operator(op) for op in called]
            return CallPlace(
                self.lines[role].names[function, called[0]], _common([s.module for s in sites]), sites[0].plan
            )
        if isinstance(called, OpPart):
            site = self.origins.operator(called)
            return CallPlace(site.kind, starred_module(site.module), site.plan)
        return CallPlace(
            "communication" if self.origins.statement(called) else "copies", "", self.origins.statement(called)
        )


def _common(modules: Sequence[str]) -> str:
    """The innermost module that has all of these.

    >>> _common(["h.0.ln_1", "h.0.attn.c_attn"])
    'h.*'
    """
    words = []
    for several in zip(*(module.split(".") for module in modules), strict=False):
        if len({*several}) > 1:
            break
        words.append(several[0])
    return starred_module(".".join(words))
