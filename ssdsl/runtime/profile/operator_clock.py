"""Divides the time of a step among the lines of a role's file, the autograd nodes of each line, and the engine.

The clock is the processor time of this thread, so that an operator takes as long as it would on a core of its own,
whatever else runs on this core. Only communication is timed by the machine's clock.

The clock always runs for one place. Python's trace function reports when a line of the role's file begins, and hooks
report when an autograd node begins; the time since the last report belongs to the place before. So no time is lost or
counted twice, and an operator is timed where it runs, with the caches as they are there. A node belongs to the line
that made it: autograd numbers its nodes in the order of their creation. A node with an attribute `place` counts at that
place instead, because its inputs are freed only when it ends.
"""

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from ..ranks.tracer import nodes_behind

if TYPE_CHECKING:
    from ..ranks.world import World


class TimedPlace(NamedTuple):
    """A place that time is spent on: a phase of a block ("F", "A", "B", "D", "W"; "R" for a forward within a backward)
    in a line of the role's file, run for a layer (line 0: the engine itself), or something else by its name. For a
    collective of a task (`COLLECTIVE`), `number` are its bytes, `layer` is its kind and `line` the number of ranks; its
    time runs from this rank's call until the collective is done."""

    what: str
    number: int = 0
    layer: str = ""
    line: int = 0


COMPUTING = ("F", "A", "B", "D", "W")
# the rest of a step, communication, and the clock's own work
STEP, TALK, CLOCK = TimedPlace("step"), TimedPlace("talk"), TimedPlace("clock")
COLLECTIVE, COLLECTIVES = "met", ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MANY, REPEATS = 200, 5  # lines or nodes in a measurement of the clock's own time, and its repetitions


class OperatorClock:
    """The clock of one rank. `file` is its role's file. `steps` has for each step the seconds of each place: a number
    for each task that has the place, or one for the step."""

    def __init__(self, file: str, world: "World") -> None:
        self.file, self.world = file, world
        self.steps: list[dict[TimedPlace, list[float]]] = []
        self._now: dict[TimedPlace, float] = {}  # the seconds of this task, or of this step outside of tasks
        self._outer: list[TimedPlace] = []  # the places that called the functions of the role's file that run now
        self._place = STEP
        self._task = TimedPlace("")
        self._collectives: dict[TimedPlace, list[float]] = {}  # of collectives in the current task
        self._last = 0.0
        self._made: list[tuple[int, TimedPlace]] = []  # the number of the next autograd node when a line began
        self._numbers: list[int] = []  # these numbers alone, for a search by bisection
        self._added: dict[TimedPlace, float] = {}  # the clock's own seconds in each place, which do not count
        self._line_s = self._node_s = 0.0  # seconds that the clock adds to each line, and node
        self._line_s, self._node_s = _own_line_s(self), _own_node_s(self)

    # -- the clock -----------------------------------------------------------------------------------------------------

    def _goes_to(self, place: TimedPlace, added_s: float = 0.0) -> None:
        """Ends the time of the present place, and begins that of another one, in which the clock itself takes
        `added_s`."""
        self._now[self._place] = self._now.get(self._place, 0.0) + time.thread_time() - self._last
        if added_s:
            self._added[place] = self._added.get(place, 0.0) + added_s
        self._place = place
        self._last = time.thread_time()

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context for a step that is timed."""
        world, transport = self.world, self.world.transport
        timed: Any = _Timed(transport, self)
        world.tracer, world.transport = self, timed
        world.control.transport = world.transport
        self.steps.append({})
        self._place, self._last = STEP, time.thread_time()
        try:
            yield
        finally:
            self._goes_to(STEP)
            world.tracer, world.transport, world.control.transport = None, transport, transport
            self._note(self._now)
            self._now, self._made, self._numbers = {}, [], []

    @contextmanager
    def task(self, what: str, number: int, at: Mapping[str, int]) -> Iterator[None]:
        """A context for a task of a step; its lines and nodes are timed one by one."""
        outside, self._now = self._now, {}
        self._task, self._collectives = TimedPlace(what, number), {}
        before = sys.gettrace()
        try:
            with self.aside(self._task):
                sys.settrace(self._called)
                yield
                sys.settrace(before)
        finally:
            sys.settrace(before)
            inside, self._now = self._now, outside
            for place in (STEP, TALK, CLOCK):
                self._now[place] = self._now.get(place, 0.0) + inside.pop(place, 0.0)
            self._note(inside)
            for place, times in self._collectives.items():
                self.steps[-1].setdefault(place, []).extend(times)
            self._task, self._collectives = TimedPlace(""), {}

    @contextmanager
    def aside(self, place: TimedPlace) -> Iterator[None]:
        """A context whose time belongs to another place."""
        before = self._place
        self._goes_to(place)
        try:
            yield
        finally:
            self._goes_to(before)

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """A context for a compiled run, whose time is that of the line which calls it: its own code has no lines. Nor
        has torch's, which compiles it at its first call."""
        before = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(before)

    def collective(self, kind: str, size_bytes: int) -> TimedPlace | None:
        """The place of the collective that the current task starts; None outside of tasks."""
        if self._task.what not in COMPUTING or self.world.last is None:
            return None
        return TimedPlace(COLLECTIVE, size_bytes, kind, self.world.last.group.size)

    def add_collective(self, place: TimedPlace, time_s: float) -> None:
        """Records the seconds for which the rank was in a collective: where it started, and where it was awaited."""
        noted = self._collectives if self._task.what in COMPUTING else self.steps[-1]
        noted.setdefault(place, []).append(time_s)

    def _note(self, times: dict[TimedPlace, float]) -> None:
        """Adds the times of a task, or of the rest of a step, to `steps`, without the clock's own."""
        for place, time_s in times.items():
            time_s = max(0.0, time_s - self._added.pop(place, 0.0))
            self.steps[-1].setdefault(place, []).append(time_s)

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function for calls: functions of the role's file are followed line by line."""
        if frame.f_code.co_filename != self.file:
            return None
        self._outer.append(self._place)
        return self._moved

    def _moved(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function in the role's file: a line begins, or a function ends."""
        if event == "line":
            is_within = self.world.recomputing and self._task.what != "A"
            what = "R" if is_within else self._task.what
            place = TimedPlace(what, self._task.number, self.world.layer, frame.f_lineno)
            self._made.append((torch._C._autograd._get_sequence_nr(), place))
            self._goes_to(place, self._line_s)
        elif event == "return":
            self._made.append((torch._C._autograd._get_sequence_nr(), self._outer[-1]))
            self._goes_to(self._outer.pop())
        return self._moved

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def follow(self, roots: Iterable[torch.Tensor | GradientEdge]) -> None:
        """Times the backward of these roots, which begins next, node by node."""
        with self.aside(CLOCK):
            self._follow_all(roots)

    def _follow_all(self, roots: Iterable[torch.Tensor | GradientEdge]) -> None:
        self._numbers = [number for number, _ in self._made]
        for weight, node in enumerate(nodes_behind(roots), start=1):
            self._follow(node, weight)

    def _follow(self, node: Any, weight: int) -> None:
        """Has a node report its place when it begins. `weight` is a number of its own for each node, by which places of
        weights differ."""
        clock, task = self, self._task
        variable, own = getattr(node, "variable", None), getattr(node, "place", None)
        made = None if variable is not None else self._line_of(node._sequence_nr())

        def begins(*_: Any) -> None:
            place = task
            if task.what == "W" and variable is not None:
                return  # a copy of a weight, in the operator's own graph
            if own is not None:
                place = own
            elif made is not None:
                place = made._replace(what=task.what, number=task.number)
            elif isinstance(variable, torch.nn.Parameter):
                place = _gradient(variable, weight)
            clock._goes_to(place, clock._node_s)

        node.register_prehook(begins)

    def _line_of(self, number: int) -> TimedPlace | None:
        """The line that made an autograd node: the last that began when its number was not yet given. None if the
        engine made it."""
        at = bisect_right(self._numbers, number) - 1
        return self._made[at][1] if at >= 0 and self._made[at][1].line else None


def _gradient(parameter: torch.Tensor, weight: int) -> TimedPlace:
    """The place of a weight's gradient: the first in the step, or one that is added. Each weight is a place of its
    own."""
    what = "first gradient" if parameter.grad is None else "next gradient"
    return TimedPlace(what, parameter.numel() * parameter.element_size(), "", weight)


class _Timed:
    """A transport, or a work handle of one (`wait`), whose calls are timed as communication."""

    def __init__(self, inner: Any, clock: OperatorClock) -> None:
        self.inner, self.clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return _timed(found, name, self.clock) if callable(found) else found


def _timed(call: Any, name: str, clock: OperatorClock) -> Any:
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        with clock.aside(TALK):
            result = call(*arguments, **options)
        place = None
        if (kind := name.removeprefix("start_")) in COLLECTIVES:
            size = max(x.numel() * x.element_size() for x in arguments if isinstance(x, torch.Tensor))
            place = clock.collective(kind, size)
        if place is not None:
            return _TimedCollective(result, clock, place, time.perf_counter() - began)
        return _Timed(result, clock) if hasattr(result, "wait") else result

    return timed


class _TimedCollective(_Timed):
    """A collective that a task has started, with the seconds that this took."""

    def __init__(self, inner: Any, clock: OperatorClock, place: TimedPlace, time_s: float) -> None:
        super().__init__(inner, clock)
        self.place, self.time_s = place, time_s

    def wait(self) -> None:
        began = time.perf_counter()
        with self.clock.aside(TALK):
            self.inner.wait()
        self.clock.add_collective(self.place, self.time_s + time.perf_counter() - began)


# -- the clock's own time --------------------------------------------------------------------------------------------


def _own_line_s(clock: OperatorClock) -> float:
    """Seconds that the clock adds to a line."""
    found: dict[str, Any] = {}
    exec(compile("def lines():\n" + "    x = 0\n" * MANY, clock.file, "exec"), found)
    return _added_s(clock, found["lines"])


def _own_node_s(clock: OperatorClock) -> float:
    """Seconds that the clock adds to an autograd node."""
    leaf = torch.zeros(1, requires_grad=True)

    def chain() -> torch.Tensor:
        end = leaf
        for _ in range(MANY):
            end = end.view(1)
        return end

    def backward() -> None:
        chain().backward()  # type: ignore[no-untyped-call]

    def followed() -> None:
        end = chain()
        clock.follow([end])
        end.backward()  # type: ignore[no-untyped-call]

    return _added_s(clock, followed, backward)


def _added_s(clock: OperatorClock, work: Callable[[], None], plain: Callable[[], None] | None = None) -> float:
    """Seconds that the clock adds to one of the MANY repetitions in `work`. `plain` is the same work for the run
    without the clock; `work` itself by default."""
    alone, clocked = [], []
    for _ in range(REPEATS):
        start = time.thread_time()
        (plain or work)()
        alone.append(time.thread_time() - start)
        clock.steps = [{}]
        clock._last = time.thread_time()
        with clock.task("own", 0, {}):
            work()
        clocked.append(sum(times[-1] for place, times in clock.steps[-1].items() if place.what == "own"))
    clock.steps = []
    clock._now, clock._made, clock._added = {}, [], {}
    return max(0.0, min(clocked) - min(alone)) / MANY
