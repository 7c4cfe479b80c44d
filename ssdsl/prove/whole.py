"""Checks the whole: every operator that is needed is in one function, loss and results are complete, and each buffer is
written once a step, on the devices where it lives and in its layout.

Readers see a buffer that is written from the next step on. Batch norms change running statistics in place: these
operators, and others that read the statistics, must run in the order of the model.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ssdsl.ir.comm import Narrow
from ssdsl.ir.function import Conversion, Function, OpPart, Section, Write
from ssdsl.ir.layout import Shape
from ssdsl.ir.program import Compute, Free, Loss, Role
from ssdsl.ir.value import Axis, Coordinate, Name, Time, Type
from ssdsl.model.graph import Operator, Stage
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts, TypedFunction
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Local, of_type
from ssdsl.prove.types.steps import after

Part = tuple[tuple[Narrow, tuple[int, ...]], ...]  # the steps in time that cut it out of a buffer, outermost first

# -- operators, loss and results ---------------------------------------------------------------------------------------


def check_operators(facts: ProofFacts) -> None:
    """Adds a failure for each operator that is in several functions, or in none, though the loss, a buffer's new value
    or an output depends on it."""
    found: dict[str, list[Function]] = {}
    for function in facts.program.functions:
        for op in function.operators():
            found.setdefault(op.operator, []).append(function)
    wanted = facts.graph.results
    for operator in reversed(facts.graph.operators):
        here = found.get(operator.name, [])
        is_needed = not wanted.isdisjoint(o.value for o in operator.outputs)
        if is_needed:
            wanted.update(o.value for o in operator.inputs)
        if len(here) > 1 or (is_needed and operator.stage is Stage.COMPUTE and not here):
            names = ", ".join(f.name for f in here) or "none"
            span = next((i.span for i in facts.program.plan.of(operator.name).indices), None)
            facts.fail(Rule.COVERED, f"operator `{operator.name}`", "", "one function", names, span)


def check_loss(facts: ProofFacts, typed: dict[int, TypedFunction]) -> None:
    """Adds a failure unless the reported loss has all of its addends once, each summed over exactly the axes and
    indices in time along which it is a partial sum."""
    losses, wanted = facts.program.losses, facts.graph.losses
    for number, one in typed.items():
        function, own = one.function, [loss.name for loss in losses if loss.function == number]
        names = [o.name for k, o in enumerate(function.outputs) if k == function.loss]
        if names != own or (function.loss is not None and not names):
            facts.fail(Rule.LOSS, f"function `{function.name}`", facts.graph.loss, own, names)
    if sorted(loss.name.value for loss in losses) != sorted(wanted):
        facts.fail(Rule.LOSS, "the loss", facts.graph.loss, wanted, [loss.name.value for loss in losses])
        return
    for loss in losses:
        _check_addend(facts, typed, loss)


def _check_addend(facts: ProofFacts, typed: dict[int, TypedFunction], loss: Loss) -> None:
    if loss.name not in typed[loss.function].types:
        facts.fail(Rule.LOSS, "the loss", loss.name, facts.graph.loss, f"function {loss.function}")
        return
    function, local = typed[loss.function].function, typed[loss.function].types[loss.name]
    owed: frozenset[Coordinate] = frozenset([*(Axis(a) for a in loss.axes), *(Time(t.name) for t in function.time)])
    if local != Local(partial=owed) or len(set(loss.axes)) != len(loss.axes):
        facts.fail(Rule.LOSS, "the loss", loss.name, local, Local(partial=owed), function.submesh.mesh.span)


def check_results(facts: ProofFacts, typed: dict[int, TypedFunction]) -> None:
    """Adds a failure for each output asked for by name that no function leaves, that has pending sums over devices, or
    that is dropped."""
    wanted = dict(facts.graph.outputs)
    for result in facts.program.results:
        where = f"result `{result.name}`"
        if wanted.pop(result.name, None) != result.value.value:
            facts.fail(Rule.RESULTS, where, result.value, facts.graph.outputs.get(result.name), result.value.value)
        one = typed[result.function]
        if one.slots.get(result.slot) != result.value or result.value not in one.types:
            facts.fail(Rule.RESULTS, where, result.value, "an output of its function", result.slot)
            continue
        span = one.function.submesh.mesh.span
        if any(o.slot == result.slot and not o.read for o in one.function.outputs):
            facts.fail(Rule.RESULTS, where, result.value, "an output that is kept", result.slot, span)
        if owed := [c.name for c in one.types[result.value].partial if isinstance(c, Axis)]:
            facts.fail(Rule.RESULTS, where, result.value, "nothing owed over devices", owed, span)
        for role in facts.program.roles:
            if any(isinstance(a, Free) and a.slot == result.slot for a in role.actions):
                facts.fail(Rule.FREED, where, result.value, "kept to the end", f"dropped in `{role.name}`", span)
    for name, value in wanted.items():
        facts.fail(Rule.RESULTS, f"result `{name}`", value, "kept", "not there")


# -- buffers -----------------------------------------------------------------------------------------------------------


def check_buffers(facts: ProofFacts, typed: dict[int, TypedFunction]) -> None:
    """Adds a failure for each buffer that is not written exactly once, with the right part, in the right place."""
    written: dict[str, list[int]] = {}
    users: dict[int, list[_User]] = {}
    for number, one in typed.items():
        views = _views(one.function)
        for section, instr in ((s, i) for s in one.function.sections for i in s.body):
            try:
                if isinstance(instr, Write):
                    written.setdefault(instr.buffer, []).append(number)
                    _check_write(facts, one, instr)
                elif isinstance(instr, OpPart):
                    for name in instr.reads:
                        if name.value in facts.graph.running:
                            users.setdefault(number, []).append(
                                _User(name.value, instr.operator, _cut_of(views, name)[1])
                            )
                    for name in _statistics(facts.operators[instr.operator], instr):
                        _check_in_place(facts, one, *_cut_of(views, name))
                        _check_once(section, name, views)
            except Wrong as wrong:
                where = f"function `{one.function.name}`"
                facts.fail_with(wrong, where, str(instr)[:80], one.function.submesh.mesh.span)
    for buffer in facts.graph.updates:
        if len(written.get(buffer, ())) != 1:
            facts.fail(Rule.UPDATED_BUFFER, "the functions", buffer, "one write", len(written.get(buffer, ())))
    if users:
        for role in facts.program.roles:
            _check_order(facts, role, users, typed)


def _statistics(operator: Operator, op: OpPart) -> list[Name]:
    """The running statistics that a batch norm in training changes in place."""
    return [r for r in op.reads if r.value in operator.statistics]


def _check_in_place(facts: ProofFacts, one: TypedFunction, name: Name, cuts: Sequence[Narrow]) -> None:
    """Raises Wrong unless an operator that reads `name`, or the part of it that `cuts` leave, reads the buffer itself,
    on the one submesh where it lives, and runs once for each part of it."""
    homes = [p.submesh for p in facts.program.params if p.weight == name.value]
    if homes != [one.function.submesh]:
        raise Wrong(Rule.UPDATED_BUFFER, f"{name.value} on {one.function.submesh} only", [str(h) for h in homes])
    if name not in {p.var.name for p in one.function.parameters}:
        raise Wrong(Rule.UPDATED_BUFFER, "the buffer itself", f"a copy, {name}")
    parts = {axis for step in cuts for axis in step.axes}
    if late := [index.name for index in one.function.time if index.parts > 1 and index.name not in parts]:
        raise Wrong(Rule.UPDATED_BUFFER, "one task for each part of it", f"one for each {late[0]}")


Views = dict[Name, tuple[Name, Narrow]]  # a part of a value: the value, and the step in time that cuts it out


def _views(function: Function) -> Views:
    """The values that a step in time cuts out of others as views: it must cut the outermost digit."""
    conversions = [i for i in function.body() if isinstance(i, Conversion)]
    steps = {i.result.name: (i.source, s) for i in conversions for s in i.forward}
    return {n: (a, s) for n, (a, s) in steps.items() if isinstance(s, Narrow) and s.in_time and s.target.outer == 1}


def _cut_of(views: Views, name: Name) -> tuple[Name, tuple[Narrow, ...]]:
    """The value of which `name` is a view, and the steps that cut its part out, the outermost first."""
    cuts: tuple[Narrow, ...] = ()
    while name in views:
        name, step = views[name]
        cuts = step, *cuts
    return name, cuts


def _check_once(section: Section, name: Name, views: Views) -> None:
    """Raises Wrong if a section that is computed again changes statistics through a part that was taken before it. What
    is taken in the section is taken of a copy the second time."""
    taken = {i.result.name for i in section.body if isinstance(i, Conversion)}
    if section.recompute and name in views and name not in taken:
        raise Wrong(Rule.UPDATED_BUFFER, "a part that is taken where it is computed again", f"{name}, taken before")


def _check_write(facts: ProofFacts, one: TypedFunction, write: Write) -> None:
    function = one.function
    if facts.graph.updates.get(write.buffer) != write.source.value:
        raise Wrong(Rule.UPDATED_BUFFER, facts.graph.updates.get(write.buffer), write.source)
    homes = {p.submesh for p in facts.program.params if p.weight == write.buffer}
    if homes - {function.submesh}:
        raise Wrong(Rule.UPDATED_BUFFER, f"{write.buffer} on {function.submesh} only", sorted(map(str, homes)))
    param = facts.params.get((write.buffer, function.submesh))
    shape, home = facts.shape(write.source.value), Local()
    if param is not None:
        if (layout := param.layout.refactored(param.shape, Shape(shape))) is None:
            raise Wrong(Rule.UPDATED_BUFFER, f"{write.buffer} in parts that {write.source} has", param.layout)
        home = of_type(Type(layout), function.submesh.axes)
    home = after(write.slices, home, shape, (), function.time)
    if one.types.get(write.source) != home:
        raise Wrong(Rule.UPDATED_BUFFER, home, one.types.get(write.source))


class _User(NamedTuple):
    """An operator that changes or reads running statistics, or the part of them that `cuts` leave."""

    buffer: str
    operator: str
    cuts: tuple[Narrow, ...]


def _check_order(facts: ProofFacts, role: Role, users: dict[int, list[_User]], typed: dict[int, TypedFunction]) -> None:
    """Adds a failure for each buffer whose users do not run on a role in the model's order, as far as they have the
    same part of it. `users` are by function."""
    place = {operator.name: number for number, operator in enumerate(facts.graph.operators)}
    last: dict[str, dict[Part, int]] = {}  # by buffer: the last user of each part
    wrong: dict[str, str] = {}
    for task in role.computes():
        if task.phase is not Phase.FORWARD or task.function not in users:
            continue
        at = {i.name: k for i, k in zip(typed[task.function].function.time, task.at, strict=True)}
        for user in users[task.function]:
            part = tuple((step, tuple(at[axis] for axis in step.axes)) for step in user.cuts)
            before, now = last.setdefault(user.buffer, {}), place[user.operator]
            if now < max((n for other, n in before.items() if not _are_apart(part, other)), default=-1):
                wrong.setdefault(user.buffer, _title(task))
            before[part] = max(before.get(part, -1), now)
    for buffer in sorted(wrong):
        span = role.submesh.mesh.span
        facts.fail(Rule.UPDATED_BUFFER, f"role `{role.name}`", buffer, "the model's order", wrong[buffer], span)


def _are_apart(one: Part, other: Part) -> bool:
    """Whether it is certain that two parts have no element in common: where the cuts first differ, the step is the same
    and only the values of its indices differ."""
    for (step, at), (its_step, its_at) in zip(one, other, strict=False):
        if step != its_step or at != its_at:
            return step == its_step
    return False


def _title(task: Compute) -> str:
    return f"function {task.function} at {list(task.at)}"
