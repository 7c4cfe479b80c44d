"""Checks buffers: each is written once a step, on the devices where it lives and in its layout.

Readers see a value that is written from the next step on. Batch norms change running statistics in place: these
operators, and others that read the statistics, must run in the order of the model.
"""

from collections.abc import Iterable

from ssdsl.ir.function import Instr, OpPart, Slice, Write
from ssdsl.ir.program import Compute, Role
from ssdsl.ir.value import Name, Time, Type
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts, TypedFunction
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Local, designated, of_type


def check_buffers(facts: ProofFacts, typed: dict[int, TypedFunction]) -> None:
    """Adds a failure for each buffer that is not written exactly once, with the right part, in the right place."""
    written: dict[str, list[int]] = {}
    statistics: set[str] = set()
    for number, one in typed.items():
        for instr in one.function.body():
            try:
                if isinstance(instr, Write):
                    written.setdefault(instr.buffer, []).append(number)
                    _check_write(facts, one, instr)
                elif isinstance(instr, OpPart):
                    for name in _statistics(facts.operators[instr.operator], instr):
                        statistics.add(name.value)
                        _check_in_place(facts, one, name)
            except Wrong as wrong:
                where = f"function `{one.function.name}`"
                facts.fail_with(wrong, where, str(instr)[:80], one.function.submesh.mesh.span)
    for buffer in facts.graph.updates:
        if len(written.get(buffer, ())) != 1:
            facts.fail(Rule.UPDATED_BUFFER, "the functions", buffer, "one write", len(written.get(buffer, ())))
    for buffer in sorted(statistics):
        for role in facts.program.roles:
            _check_order(facts, role, buffer, typed)


def _statistics(operator: Operator, op: OpPart) -> list[Name]:
    """The running statistics that a batch norm in training changes in place."""
    return [r for r in op.reads if r.value in operator.statistics]


def _check_in_place(facts: ProofFacts, one: TypedFunction, name: Name) -> None:
    """Raises Wrong unless the operator reads the buffer itself, on the one submesh where it lives, and runs once for
    each part of it."""
    homes = [p.submesh for p in facts.program.params if p.weight == name.value]
    if homes != [one.function.submesh]:
        raise Wrong(Rule.UPDATED_BUFFER, f"{name.value} on {one.function.submesh} only", [str(h) for h in homes])
    slices = {i.result.name: i for i in one.function.body() if isinstance(i, Slice) and i.cut.outer == 1}
    parts: set[str] = set()
    while name in slices:  # the outermost digit is cut out as a view
        parts.add(slices[name].index.name)
        name = slices[name].source
    if name not in {p.var.name for p in one.function.parameters}:
        raise Wrong(Rule.UPDATED_BUFFER, "the buffer itself", f"a copy, {name}")
    if late := [index.name for index in one.function.time if index.parts > 1 and index.name not in parts]:
        raise Wrong(Rule.UPDATED_BUFFER, "one task for each part of it", f"one for each {late[0]}")


def _check_write(facts: ProofFacts, one: TypedFunction, write: Write) -> None:
    function = one.function
    if facts.graph.updates.get(write.buffer) != write.source.value:
        raise Wrong(Rule.UPDATED_BUFFER, facts.graph.updates.get(write.buffer), write.source)
    homes = {p.submesh for p in facts.program.params if p.weight == write.buffer}
    if homes - {function.submesh}:
        raise Wrong(Rule.UPDATED_BUFFER, f"{write.buffer} on {function.submesh} only", sorted(map(str, homes)))
    param = facts.params.get((write.buffer, function.submesh))
    home = Local() if param is None else of_type(Type(param.layout), function.submesh.axes)
    shape = facts.shape(write.source.value)
    for index, cut in write.slices:
        if index not in function.time:
            raise Wrong(Rule.INDEX, function.time, index)
        home = home.fixing(Time(index.name), designated(shape, frozenset(home.fixed()), cut))
    if one.types.get(write.source) != home:
        raise Wrong(Rule.UPDATED_BUFFER, home, one.types.get(write.source))


def _check_order(facts: ProofFacts, role: Role, buffer: str, typed: dict[int, TypedFunction]) -> None:
    """Adds a failure unless the operators that change or read statistics run on a role in the model's order."""
    place = {operator.name: number for number, operator in enumerate(facts.graph.operators)}
    last = -1
    for task in role.computes():
        if task.phase is not Phase.FORWARD or task.function not in typed:
            continue
        function = typed[task.function].function
        places = [place[op.operator] for op in _users(function.body(), buffer)]
        if places != sorted(places) or (places and places[0] < last):
            where = f"role `{role.name}`"
            facts.fail(Rule.UPDATED_BUFFER, where, buffer, "the model's order", _title(task), role.submesh.mesh.span)
            return
        last = max([last, *places])


def _users(body: Iterable[Instr], buffer: str) -> list[OpPart]:
    """The operators that read a buffer."""
    return [i for i in body if isinstance(i, OpPart) and buffer in {r.value for r in i.reads}]


def _title(task: Compute) -> str:
    return f"function {task.function} at {list(task.at)}"
