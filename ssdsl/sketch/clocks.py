"""An order for a plan that has none, or another one for tasks that are no plain row of stages: a clock that all
micro-batches share (`solve/loop.py`), written as a call of `modulo` of the standard library, or for two stages on each
device, laid out as a V, numbers of these with the halves of backwards (`solve/vee.py`), as `v_schedule`.

Its parts are what the plan's `assign` statements place, each in its turn of a loop. What they take and keep is found
from their functions, before these have an order; the plan that comes of it is simulated and proved like any other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from math import floor, prod
from statistics import median

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.function import Backward, Earlier, Function
from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.plan.eval.values import Selection
from ssdsl.plan.interpret import interpret_part, read_plan
from ssdsl.plan.model_index import ModelIndex
from ssdsl.simulate.simulate import capacity_bytes
from ssdsl.simulate.state import State
from ssdsl.sketch.orders import PLAIN
from ssdsl.sketch.schedules import called, is_schedule, with_import, with_use
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.sketch.unordered import Unordered, unordered
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
EPSILON = 1e-7  # of a period: what makes a difference of equal times


def is_open(sketch: Sketch) -> bool:
    """Whether a clock may be found for the plan, by its text: it has no order, or calls one of the standard library for
    something else than a row of stages, and says what it assigns where it can be named."""
    orders = list(_orders(sketch.script))
    one = not orders or (len(orders) == 1 and _call(sketch.script) is not None)
    return one and _written_parts(sketch) is not None and _written_count(sketch) is not None


def is_without_order(sketch: Sketch) -> bool:
    """Whether the plan leaves it to us which task comes before which, by its text."""
    return is_open(sketch) and next(_orders(sketch.script), None) is None


@dataclass(frozen=True, slots=True)
class Modulo:
    """The numbers of a clock: of a period, and of the forward and the backward of each part in it. By the times of the
    parts it takes `gap` longer than the least that any order of them does, as a share of that."""

    period: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    gap: float = 0.0

    def __str__(self) -> str:
        forward, backward = (", ".join(map(str, numbers)) for numbers in (self.forward, self.backward))
        return f"period = {self.period}, forward = [{forward}], backward = [{backward}]"


@dataclass(frozen=True, slots=True)
class VSchedule:
    """The numbers of an order of a V, and what it takes longer than the least, as a share of that."""

    found: Vee
    gap: float

    def __str__(self) -> str:
        numbers = {"ahead": self.found.ahead, "late": self.found.late, "last": self.found.last}
        lists = (f"{name} = [{', '.join(map(str, own))}]" for name, own in numbers.items())
        return f"{', '.join(lists)}, tail = {self.found.tail}"


def with_clock(sketch: Sketch, values: Values, found: Modulo | VSchedule) -> Sketch:
    """The sketch with this clock in place of its order. Its params are not open any more: the numbers are for them."""
    text, own = sketch.source.text, _call(sketch.script)
    above = "no order takes less" if found.gap < SAME else f"{found.gap:.1%} above the least that any order takes"
    note = f"# by the times of its parts, {above}\n"
    schedule = V_SCHEDULE if isinstance(found, VSchedule) else MODULO
    asked = f"{note}{schedule}({_written_parts(sketch)}, {_written_count(sketch)}, {found})"
    if own is None:
        return sketch.answered(with_use(sketch.script, f"{text.rstrip()}\n{asked}\n", schedule), values)
    name, call = own
    text = f"{text[: call.span.start]}{asked}{text[call.span.end :]}"
    return sketch.answered(with_import(sketch.script, text, name, schedule), values)


def clock_of(
    sketch: Sketch, values: Values, model: ModelIndex, cluster: Cluster, state: State, share: float
) -> Modulo | VSchedule | None:
    """A clock for a setting in this share of the memory, or in more where none fits: what it takes, and by how much
    it is too large, are then still those of a good order. None where its tasks are no such loop. Raises PlanError where
    the plan is none."""
    parts = parts_of(sketch, values, model)
    if not parts:
        return None
    plan = read_plan(sketch.script, model, sketch.overrides(values), sketch.folder, most=1, orders=False).plan
    number = {name: n for n, part in enumerate(parts) for name in part}
    found = unordered(plan, number, cluster, state)
    steps = _steps(found, parts)
    if not steps:
        return None
    loop = _loop(found, steps, share)
    better = list(clock(loop, EFFORT)) or list(clock(replace(loop, memory=()), EFFORT))
    if _is_vee(found, steps):
        pipeline = _pipeline(unordered(plan, number, cluster, state, halves=True), parts, share)
        *_, best_vee = (None, *vee(pipeline, EFFORT, whole_step=True))
        if best_vee is not None and (not better or best_vee.step_s < better[-1].step_s):
            return VSchedule(best_vee, best_vee.step_s / pipeline.least - 1)
    if not better:
        return None
    best = better[-1]
    period, at = _whole(loop, best.at, best.period)
    due = {step.key: time for step, time in zip(steps, at, strict=True)}
    forward, backward = (tuple(due.get((n, back), 0) for n in range(len(parts))) for back in (False, True))
    return Modulo(period, forward, backward, best.step_s / loop.least - 1)


# -- text --------------------------------------------------------------------------------------------------------------


def _orders(script: nodes.Script) -> Iterator[nodes.Node]:
    """What gives tasks an order: statements, and names of the standard library's schedules."""
    for node in nodes.walk(script):
        names_one = isinstance(node, nodes.Name) and is_schedule(script, node.text)
        if names_one or isinstance(node, nodes.Order | nodes.Clock):
            yield node


def _call(script: nodes.Script) -> tuple[str, nodes.Call] | None:
    """The call of a schedule of something else than a row of stages, and its name."""
    return next(((name, call) for name, call in called(script) if name not in (*PLAIN, MODULO, V_SCHEDULE)), None)


def _written_parts(sketch: Sketch) -> str | None:
    """What the plan assigns, as a list; None where that is one thing, or stands in functions or conditions."""
    text, found = sketch.source.text, list[tuple[str, str]]()  # each with the loop that it is in
    for s in sketch.script.statements:
        match s:
            case nodes.Assign():
                found += ((_text(text, each), "") for each in _operands(s.operators))
            case nodes.For(bindings, body) if all(isinstance(inner, nodes.Assign) for inner in body):
                loop = text[bindings[0].span.start : bindings[-1].span.end]
                assigned = (inner.operators for inner in body if isinstance(inner, nodes.Assign))
                found += ((_text(text, each), loop) for operators in assigned for each in _operands(operators))
            case _ if any(isinstance(node, nodes.Assign) for node in nodes.walk(s)):
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
    """How many micro-batches there are, as the plan says it."""
    cuts = (cut for s in sketch.script.statements if isinstance(s, nodes.Split) for cut in s.cuts)
    counts = {_text(sketch.source.text, cut.count) for cut in cuts if cut.name.text == INDEX and cut.count is not None}
    return counts.pop() if len(counts) == 1 else None


# -- parts -------------------------------------------------------------------------------------------------------------


def parts_of(sketch: Sketch, values: Values, model: ModelIndex) -> list[frozenset[str]]:
    """The operators of each part of an open plan: none, unless there are several and every operator is in one, and
    unless no file that the plan uses says an order. Raises PlanError where the plan is none."""
    text = f"{sketch.source.text.rstrip()}\nlet {PARTS} = {_written_parts(sketch)}\n"
    script = parse(Source(sketch.source.name, text))
    ctx, scope = interpret_part(script, model, sketch.overrides(values), sketch.folder)
    own, found = _call(sketch.script), scope.values[PARTS]
    sites = [*(order.called for order in ctx.facts.orders), *(rows.called for rows in ctx.facts.clocks)]
    if any(site is None or own is None or site.start != own[1].span.start for site in sites):
        return []
    assert isinstance(found, tuple)
    parts = [model.only_compute(part.operators) for part in found if isinstance(part, Selection) and not part.fixed]
    is_whole = sum(map(len, parts)) == len(model.compute) == len(frozenset().union(*parts))
    return parts if is_whole and len(parts) > 1 else []


Key = tuple[int, bool]  # a part, and whether this is its backward


@dataclass(frozen=True, slots=True)
class _Step:
    """The forward or the backward of a part for one micro-batch: its functions, and what it waits for."""

    key: Key
    functions: tuple[Function, ...]
    after: tuple[Key, ...]


def _steps(found: Unordered, parts: Sequence[frozenset[str]]) -> list[_Step] | None:
    """The steps of a micro-batch, each behind what it waits for; None where they wait for each other."""
    number = {name: n for n, part in enumerate(parts) for name in part}
    own: dict[int, list[Function]] = {}
    part_of: dict[int, int] = {}
    for function in found.program.functions:
        of = next((number[i.operator] for i in function.operators() if i.operator in number), None)
        if of is not None and any(t.name == INDEX for t in function.time):  # it has a task for each micro-batch
            own.setdefault(of, []).append(function)
            part_of[function.number] = of
    after: dict[Key, set[Key]] = {}
    for n, functions in own.items():
        after.setdefault((n, False), set())
        if any(f.backward is not Backward.NONE for f in functions):
            after.setdefault((n, True), set()).add((n, False))
        for given in (g for f in functions for g in f.inputs if g.producer in part_of):
            maker = part_of[given.producer]
            if maker == n or any(isinstance(m, Earlier) for m in given.merges):
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
    memory = tuple(_room(found, r, share) for r in roles)
    count = next(t.parts for step in steps for f in step.functions for t in f.time if t.name == INDEX)
    inputs = (g for step in steps for f in step.functions for g in f.inputs if g.message is not None)
    travels = [found.travel(given, False) for given in inputs]
    return Loop(tuple(tasks), count, median(travels) if travels else 0.0, memory)


def _is_vee(found: Unordered, steps: Sequence[_Step]) -> bool:
    """Whether the parts are stages that go down over the devices and back up, two on each."""
    roles = {s.key[0]: {r for f in s.functions for r in found.members[f.submesh]} for s in steps if not s.key[1]}
    count, in_row = len(roles), all(part < s.key[0] for s in steps for part, back in s.after if not (s.key[1] or back))
    down = [roles[n] for n in range(count // 2)]
    apart = sum(map(len, down)) == len(set().union(*down))
    mirrored = all(roles[n] == roles[count - 1 - n] for n in range(count))
    return count % 2 == 0 and count > 2 and in_row and apart and mirrored and len(steps) == 2 * count


def _pipeline(found: Unordered, parts: Sequence[frozenset[str]], share: float) -> Pipeline:
    """Stages laid out as a V, with the memory that is left for activations, by what a micro-batch takes of it."""
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
    most = [2 * max(held[d], held[-1 - d], 1) for d in range(count)]  # the larger stage as if both were
    memory = tuple(min(_room(found, r, share) for r in roles[d]) / most[d] for d in range(count))
    loop = _loop(found, list(steps.values()), share)
    return Pipeline(forward, backward, weights, loop.transfer, loop.micro_batches, share_kept, memory)


def _each(found: Unordered, step: _Step, seconds: Callable[[Function, int], float], role: int) -> float:
    """Seconds of a role for one micro-batch."""
    own = (f for f in step.functions if role in found.members[f.submesh])
    return sum(_turns(f) * seconds(f, role) for f in own)


def _seconds(found: Unordered, step: _Step, role: int) -> float:
    return _each(found, step, found.backward if step.key[1] else found.forward, role)


def _turns(function: Function) -> int:
    """How often a function runs for one micro-batch."""
    return prod(t.parts for t in function.time if t.name != INDEX)


def _room(found: Unordered, role: int, share: float) -> float:
    """Bytes of a device for activations."""
    program, cluster = found.program, found.prices.cluster
    return share * capacity_bytes(program, program.roles[role], cluster) - found.state_bytes(role)


# -- numbers -----------------------------------------------------------------------------------------------------------


def _whole(loop: Loop, at: Sequence[float], period: float) -> tuple[int, tuple[int, ...]]:
    """Small whole numbers that put the tasks of every device in the same order: if no rounding does, their ranks in the
    period."""
    apart = [time + n * EPSILON * period for n, time in enumerate(at)]
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
