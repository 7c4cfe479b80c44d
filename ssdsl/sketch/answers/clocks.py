"""Finds a clock for a plan without an order, or another one for a plan whose stages are not one per device.

All micro-batches share the clock (`solve/loop.py`); it is written as a call of `modulo` of the standard library. For
two stages on each device, laid out as a V, it can also be numbers of an order with backwards in halves
(`solve/vee.py`), written as `v_schedule`.

The clock's parts are what the plan's `assign` statements place, in each turn of a loop. Their times and memory are
those of the plan's functions before they have an order. The resulting plan is simulated and proved like any other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from math import floor, prod
from statistics import median

from ssdsl.analyse.state import StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.identity import distinct
from ssdsl.ir.function import Backward, Function
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Kernels
from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.plan.interpret import interpret_part, read_plan
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Plan
from ssdsl.plan.values import Selection
from ssdsl.record import Record, replace
from ssdsl.sketch.answers.orders import PLAIN
from ssdsl.sketch.answers.schedules import called, is_schedule, with_import, with_use
from ssdsl.sketch.bounds.task_bounds import Unordered, unordered
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.solve.loop import Loop, Task, clock
from ssdsl.solve.pipeline import Pipeline
from ssdsl.solve.vee import Vee, vee
from ssdsl.text.source import Source

MODULO = "modulo"
V_SCHEDULE = "v_schedule"
INDEX = "m"  # of micro-batches, by this name in the schedules of the standard library
PARTS = "parts_of_modulo"
EFFORT = 400_000  # tasks that the solver places
SAME = 0.0005  # of a step
EPSILON = 1e-7  # of a period: added to times so that no two are equal


def is_open(sketch: Sketch) -> bool:
    """Whether a clock may be found for the plan, judged by its text: it has no order, or one call of a schedule of the
    library that is not for one stage per device; and its assignments can be written as a list."""
    orders = list(_orders(sketch.script))
    one = not orders or (len(orders) == 1 and _call(sketch.script) is not None)
    return one and _written_parts(sketch) is not None and _written_count(sketch) is not None


def is_without_order(sketch: Sketch) -> bool:
    """Whether the plan has no order at all, judged by its text, so that a clock is found for each setting."""
    return is_open(sketch) and next(_orders(sketch.script), None) is None


def may_be_vee(plan: Plan) -> bool:
    """Whether the parts of a plan without an order may be stages that go down over the devices and back up, whose
    clock may have backwards in halves: then two are placed on each device, but for the last, which may have both by
    one `assign`."""
    meshes = {mesh.name: mesh for mesh in plan.meshes}
    places = distinct(r.place for r in plan.operators.values() if r.place is not None)
    counts = Counter(tuple(Submesh(meshes[place.mesh], place.fixed).ranks()) for place in places)
    return len(counts) > 1 and sum(count != 2 for count in counts.values()) <= 1


class Modulo(Record):
    """The numbers of a `modulo` clock: its period, and the times of the forward and the backward of each part.

    `gap` is how much longer a step takes than the lower bound for any order of these parts, relative to the bound.
    """

    period: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    gap: float = 0.0

    def __str__(self) -> str:
        forward, backward = (", ".join(map(str, numbers)) for numbers in (self.forward, self.backward))
        return f"period = {self.period}, forward = [{forward}], backward = [{backward}]"


class VSchedule(Record):
    """The numbers of a `v_schedule`; `gap` as in `Modulo`."""

    found: Vee
    gap: float

    def __str__(self) -> str:
        numbers = {"ahead": self.found.ahead, "late": self.found.late, "last": self.found.last}
        lists = (f"{name} = [{', '.join(map(str, own))}]" for name, own in numbers.items())
        return f"{', '.join(lists)}, tail = {self.found.tail}"


def with_clock(sketch: Sketch, values: Values, found: Modulo | VSchedule) -> Sketch:
    """The sketch with this clock in place of its order. Its params are no longer open, because the numbers depend on
    them."""
    text, own = sketch.source.text, _call(sketch.script)
    most = f"at most {found.gap:.1%} above the least that any order takes"
    above = "no order takes less" if found.gap < SAME else most
    note = f"# by the times of its parts, {above}\n"
    schedule = V_SCHEDULE if isinstance(found, VSchedule) else MODULO
    asked = f"{note}{schedule}({_written_parts(sketch)}, {_written_count(sketch)}, {found})"
    if own is None:
        return sketch.answered(with_use(sketch.script, f"{text.rstrip()}\n{asked}\n", schedule), values)
    name, call = own
    text = f"{text[: call.span.start]}{asked}{text[call.span.end :]}"
    return sketch.answered(with_import(sketch.script, text, name, schedule), values)


@dataclass(slots=True)
class OpenClock:
    """A setting of a plan whose clock is open: its parts, and the functions that they become, before any order."""

    parts: list[frozenset[str]]
    found: Unordered
    steps: list["_Step"]
    _halved: Unordered | None = None

    def clock(self, share: float, fits: bool) -> Modulo | VSchedule | None:
        """A clock that needs at most this share of the memory. If none does, and it need not be one that `fits`, a good
        clock that needs more: its step then shows the time, and how much memory is missing."""
        loop = _loop(self.found, self.steps, share)
        better = list(clock(loop, EFFORT))
        if not (better or fits):
            better = list(clock(replace(loop, memory=()), EFFORT))
        if _is_vee(self.found, self.steps):
            self._halved = self._halved or self.found.halved()
            pipeline = _pipeline(self._halved, self.parts, share)
            *_, best_vee = (None, *vee(pipeline, EFFORT, whole_step=True))
            if best_vee is not None and (not better or best_vee.step_s < better[-1].step_s):
                return VSchedule(best_vee, best_vee.step_s / pipeline.least - 1)
        if not better:
            return None
        best = better[-1]
        period, at = _whole(loop, best.at, best.period)
        due = {step.key: time for step, time in zip(self.steps, at, strict=True)}
        forward, backward = (tuple(due.get((n, back), 0) for n in range(len(self.parts))) for back in (False, True))
        return Modulo(period, forward, backward, best.step_s / loop.least - 1)


def open_clock(
    sketch: Sketch, values: Values, model: ModelIndex, cluster: Cluster, state: StatePrecision, kernels: Kernels
) -> OpenClock | None:
    """The open clock of a setting; None if its tasks are not a loop that all micro-batches share. Raises PlanError
    for an invalid plan."""
    parts = parts_of(sketch, values, model)
    if not parts:
        return None
    plan = read_plan(sketch.script, model, sketch.overrides(values), sketch.folder, most=1, orders=False).plan
    found = unordered(plan, {name: n for n, part in enumerate(parts) for name in part}, cluster, state, kernels)
    steps = _steps(found, parts)
    return OpenClock(parts, found, steps) if steps else None


# -- text --------------------------------------------------------------------------------------------------------------


def _orders(script: nodes.Script) -> Iterator[nodes.Node]:
    """The nodes that order tasks: statements, and names of the standard library's schedules."""
    for node in nodes.walk(script):
        names_one = isinstance(node, nodes.NameExpression) and is_schedule(script, node.text)
        if names_one or isinstance(node, nodes.OrderStatement | nodes.ClockStatement):
            yield node


def _call(script: nodes.Script) -> tuple[str, nodes.Call] | None:
    """The name and the call of a schedule that is not for one stage per device."""
    return next(((name, call) for name, call in called(script) if name not in (*PLAIN, MODULO, V_SCHEDULE)), None)


def _written_parts(sketch: Sketch) -> str | None:
    """The things that the plan assigns, as the text of a list; None if there is only one, or if an `assign` is
    inside a function or a condition."""
    text, found = sketch.source.text, list[tuple[str, str]]()  # each with the text of its loop
    for s in sketch.script.statements:
        match s:
            case nodes.AssignStatement():
                found += ((_text(text, each), "") for each in _operands(s.operators))
            case nodes.ForStatement(bindings, body) if all(isinstance(inner, nodes.AssignStatement) for inner in body):
                loop = text[bindings[0].span.start : bindings[-1].span.end]
                assigned = (inner.operators for inner in body if isinstance(inner, nodes.AssignStatement))
                found += ((_text(text, each), loop) for operators in assigned for each in _operands(operators))
            case _ if any(isinstance(node, nodes.AssignStatement) for node in nodes.walk(s)):
                return None
            case _:
                pass
    alone = [item for item, loop in found if not loop]
    lists = [f"[{item} for {loop}]" for item, loop in found if loop]
    if len(alone) + 2 * len(lists) < 2:
        return None
    return " + ".join([*lists, *([f"[{', '.join(alone)}]"] if alone else ())])


def _operands(e: nodes.Expr) -> Iterator[nodes.Expr]:
    match e:
        case nodes.Binary(operator="|" | "+", left=left, right=right):
            yield from _operands(left)
            yield from _operands(right)
        case _:
            yield e


def _text(text: str, node: nodes.Node) -> str:
    return text[node.span.start : node.span.end]


def _written_count(sketch: Sketch) -> str | None:
    """The number of micro-batches, as the plan writes it; None if it writes none, or several."""
    cuts = (cut for s in sketch.script.statements if isinstance(s, nodes.SplitStatement) for cut in s.cuts)
    counts = {_text(sketch.source.text, cut.count) for cut in cuts if cut.name.text == INDEX and cut.count is not None}
    return counts.pop() if len(counts) == 1 else None


# -- parts -------------------------------------------------------------------------------------------------------------


def parts_of(sketch: Sketch, values: Values, model: ModelIndex) -> list[frozenset[str]]:
    """The operators of each part of an open plan. Empty unless there are several parts, every operator is in exactly
    one, and no file that the plan uses adds an order. Raises PlanError for an invalid plan."""
    text = f"{sketch.source.text.rstrip()}\nlet {PARTS} = {_written_parts(sketch)}\n"
    script = parse(Source(sketch.source.name, text))
    ctx = interpret_part(script, model, sketch.overrides(values), sketch.folder)
    own, found = _call(sketch.script), ctx.scope.values[PARTS]
    sites = [*(order.called for order in ctx.facts.orders), *(rows.called for rows in ctx.facts.clocks)]
    if any(site is None or own is None or site.start != own[1].span.start for site in sites):
        return []
    assert isinstance(found, tuple)
    parts = [model.only_compute(part.operators) for part in found if isinstance(part, Selection) and not part.fixed]
    is_whole = sum(map(len, parts)) == len(model.compute) == len(frozenset().union(*parts))
    return parts if is_whole and len(parts) > 1 else []


Key = tuple[int, bool]  # a part's number, and whether this is its backward


class _Step(Record):
    """The forward or the backward of a part for one micro-batch: its functions, and the steps that it waits for."""

    key: Key
    functions: tuple[Function, ...]
    after: tuple[Key, ...]


def _steps(found: Unordered, parts: Sequence[frozenset[str]]) -> list[_Step] | None:
    """The steps of a micro-batch in topological order; None if they wait for each other in a cycle."""
    moved = found.program.graph.repeated  # these are in the functions of their readers, whatever part they are of
    number = {name: n for n, part in enumerate(parts) for name in part - moved}
    own: dict[int, list[Function]] = {}
    part_of: dict[int, int] = {}
    for function in found.program.functions:
        of = next((number[i.operator] for i in function.operators() if i.operator in number), None)
        if of is not None and any(t.name == INDEX for t in function.time):  # it runs for each micro-batch
            own.setdefault(of, []).append(function)
            part_of[function.number] = of
    after: dict[Key, set[Key]] = {}
    for n, functions in own.items():
        after.setdefault((n, False), set())
        if any(f.backward is not Backward.NONE for f in functions):
            after.setdefault((n, True), set()).add((n, False))
        for given in (g for f in functions for g in f.inputs if g.producer in part_of):
            maker = part_of[given.producer]
            if maker == n:
                continue
            after[n, False].add((maker, False))
            if given.gradient:
                after.setdefault((maker, True), set()).add((n, True))
    try:
        order = list(TopologicalSorter(after).static_order())
    except CycleError:
        return None
    return [_Step(key, tuple(own[key[0]]), tuple(after.get(key, ()))) for key in order]


def _loop(found: Unordered, steps: Sequence[_Step], share: float) -> Loop:
    """The steps as tasks of a loop, with the memory that is left for activations."""
    roles = sorted({r for step in steps for f in step.functions for r in found.members[f.submesh]})
    device = {r: d for d, r in enumerate(roles)}
    number = {step.key: n for n, step in enumerate(steps)}
    tasks = []
    for step in steps:
        part, is_back = step.key
        own = [device[r] for f in step.functions for r in found.members[f.submesh]]
        seconds = max(_seconds(found, step, r) for r in roles)
        held = float(sum(_turns(f) * found.kept_bytes(f) for f in step.functions))
        takes, gives = (0.0, held) if is_back else (held, 0.0 if (part, True) in number else held)
        tasks.append(Task(tuple(sorted(set(own))), seconds, tuple(number[key] for key in step.after), takes, gives))
    memory = tuple(found.room_bytes(r, share) for r in roles)
    count = next(t.parts for step in steps for f in step.functions for t in f.time if t.name == INDEX)
    inputs = (g for step in steps for f in step.functions for g in f.inputs if g.message is not None)
    travels = [found.travel(given, False) for given in inputs]
    return Loop(tuple(tasks), count, median(travels) if travels else 0.0, memory)


def _is_vee(found: Unordered, steps: Sequence[_Step]) -> bool:
    """Whether the parts are stages that go down over the devices and back up, two on each device."""
    roles = {s.key[0]: {r for f in s.functions for r in found.members[f.submesh]} for s in steps if not s.key[1]}
    count, in_row = len(roles), all(part < s.key[0] for s in steps for part, back in s.after if not (s.key[1] or back))
    down = [roles[n] for n in range(count // 2)]
    apart = sum(map(len, down)) == len(set().union(*down))
    mirrored = all(roles[n] == roles[count - 1 - n] for n in range(count))
    return count % 2 == 0 and count > 2 and in_row and apart and mirrored and len(steps) == 2 * count


def _pipeline(found: Unordered, parts: Sequence[frozenset[str]], share: float) -> Pipeline:
    """The stages as a V for `solve/vee.py`, with the memory that is left for activations, in units of a
    micro-batch's."""
    steps = {step.key[0]: step for step in _steps(found, parts) or () if not step.key[1]}
    stages = [steps[n] for n in range(len(parts))]
    roles = [sorted({r for f in stage.functions for r in found.members[f.submesh]}) for stage in stages]
    forward, backward, weights = (
        tuple(max(_each(found, stage, seconds, r) for r in own) for stage, own in zip(stages, roles, strict=True))
        for seconds in (found.forward, lambda f, r: found.backward(f, r) - found.weights(f, r), found.weights)
    )
    held = [sum(_turns(f) * found.kept_bytes(f) for f in stage.functions) for stage in stages]
    kept = [sum(_turns(f) * found.kept_for_weights_bytes(f) for f in stage.functions) for stage in stages]
    share_kept = max(part / whole if whole else 0.0 for part, whole in zip(kept, held, strict=True))
    count = len(parts) // 2
    most = [2 * max(held[d], held[-1 - d], 1) for d in range(count)]  # as if both stages were like the larger one
    memory = tuple(min(found.room_bytes(r, share) for r in roles[d]) / most[d] for d in range(count))
    loop = _loop(found, list(steps.values()), share)
    return Pipeline(forward, backward, weights, loop.transfer, loop.micro_batches, share_kept, memory)


def _each(found: Unordered, step: _Step, seconds: Callable[[Function, int], float], role: int) -> float:
    """The seconds of a role for one micro-batch."""
    own = (f for f in step.functions if role in found.members[f.submesh])
    return sum(_turns(f) * seconds(f, role) for f in own)


def _seconds(found: Unordered, step: _Step, role: int) -> float:
    return _each(found, step, found.backward if step.key[1] else found.forward, role)


def _turns(function: Function) -> int:
    """The number of times that a function runs for one micro-batch."""
    return prod(t.parts for t in function.time if t.name != INDEX)


# -- numbers -----------------------------------------------------------------------------------------------------------


def _whole(loop: Loop, at: Sequence[float], period: float) -> tuple[int, tuple[int, ...]]:
    """Small whole numbers that put the tasks of every device in the same order as `at`. If no rounding keeps the order,
    the ranks of the tasks in the period."""
    apart = [time + n * EPSILON * period for n, time in enumerate(at)]
    # For two tasks of one device: the number of whole periods between them, which rounding must not change.
    shared = [
        (a, b, floor((apart[a] - apart[b]) / period))
        for a, b in combinations(range(len(at)), 2)
        if set(loop.tasks[a].devices) & set(loop.tasks[b].devices)
    ]
    for count in range(2, 2 * len(at)):
        rounded = [round(time * count / period) for time in at]
        if all(
            (rounded[a] - rounded[b]) % count and (rounded[a] - rounded[b]) // count == turns for a, b, turns in shared
        ):
            break
    else:
        count = len(at)
        ranks = sorted(range(count), key=lambda n: apart[n] % period)
        rounded = [0] * count
        for rank, n in enumerate(ranks):
            rounded[n] = count * floor(apart[n] / period) + rank
    return count, tuple(n - min(rounded) for n in rounded)
