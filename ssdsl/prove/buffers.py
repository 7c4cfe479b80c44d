"""Buffers: each takes its new value once a step, where it lives, in its layout, and behind all that reads the old."""

from ssdsl.ir.action import Compute
from ssdsl.ir.function import Function, Op, Slice, Write, reads_of
from ssdsl.ir.program import Role
from ssdsl.ir.value import Name, Time, Type
from ssdsl.model.graph import Operator, Ref
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import Facts, Typed
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.local import Local, designated, of_type


def check_buffers(facts: Facts, typed: dict[int, Typed]) -> None:
    """Adds a failure for each buffer that is not written exactly once, with the right part, in the right place."""
    written: dict[str, list[int]] = {}
    for number, one in typed.items():
        for instr in one.function.body():
            try:
                if isinstance(instr, Write):
                    written.setdefault(instr.buffer, []).append(number)
                    _check_write(facts, one, instr)
                elif isinstance(instr, Op) and instr.operator in facts.operators:
                    for name in _statistics(facts.operators[instr.operator], instr):
                        written.setdefault(name.value, []).append(number)
                        _check_in_place(facts, one, name)
            except Wrong as wrong:
                where = f"function `{one.function.name}`"
                facts.failures.wrong(wrong, where, str(instr)[:80], one.function.submesh.mesh.span)
    for buffer in facts.graph.updates:
        if len(written.get(buffer, ())) != 1:
            facts.failures.add(Rule.UPDATED_BUFFER, "the functions", buffer, "one write", len(written.get(buffer, ())))
    for buffer, writers in written.items():
        for role in facts.program.roles:
            _check_order(facts, role, buffer, writers[0], typed)


def _statistics(operator: Operator, op: Op) -> list[Name]:
    """What batch norm in training changes in place: its running statistics."""
    if operator.kind != "batch_norm" or operator.args[6] is not True:
        return []
    values = {a.value for a in operator.args[4:6] if isinstance(a, Ref)}
    return [r for r in op.reads if r.value in values]


def _check_in_place(facts: Facts, one: Typed, name: Name) -> None:
    """The operator is given the buffer itself, in the one place where it lives, and runs once."""
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


def _check_write(facts: Facts, one: Typed, write: Write) -> None:
    function = one.function
    if facts.graph.updates.get(write.buffer) != write.source.value:
        raise Wrong(Rule.UPDATED_BUFFER, facts.graph.updates.get(write.buffer), write.source)
    homes = {p.submesh for p in facts.program.params if p.weight == write.buffer}
    if homes - {function.submesh}:
        raise Wrong(Rule.UPDATED_BUFFER, f"{write.buffer} on {function.submesh} only", sorted(map(str, homes)))
    param = facts.params.get((write.buffer, function.submesh))
    home = Local() if param is None else of_type(Type(param.layout), function.submesh.axes, ())
    shape = facts.shape(write.source.value)
    for index, cut in write.slices:
        if index not in function.time:
            raise Wrong(Rule.INDEX, function.time, index)
        home = home.fixing(Time(index.name), designated(shape, frozenset(home.fixed()), cut, index.sizes))
    if one.types.get(write.source) != home:
        raise Wrong(Rule.UPDATED_BUFFER, home, one.types.get(write.source))
    own = {index.name for index, _ in write.slices}
    for at, instr in enumerate(function.body()):
        for read in reads_of(instr):
            if read.value != write.buffer:
                continue
            if at > list(function.body()).index(write):
                raise Wrong(Rule.UPDATED_BUFFER, "readers before the write", instr)
            local = one.types.get(read)
            parts = {c.name for c, _ in local.digits if isinstance(c, Time)} if local is not None else set()
            if not isinstance(instr, Slice) and {t.name for t in function.time} - (own & parts):
                raise Wrong(Rule.UPDATED_BUFFER, "readers of the running part only", instr)


def _check_order(facts: Facts, role: Role, buffer: str, writer: int, typed: dict[int, Typed]) -> None:
    """Every other function that reads a buffer runs before the one that writes it, and none runs again behind it. Where
    both are cut along one index in time, that is so part by part."""
    readers = {n for n, one in typed.items() if n != writer and _reads(one.function, buffer)}
    computes = [c for c in role.computes() if c.phase is Phase.FORWARD]
    first = next((k for k, c in enumerate(computes) if c.function == writer), len(computes))
    again = {n for n in {*readers, writer} if _reads_again(facts, typed[n].function, buffer)}
    late = next((c for c in computes if c.function in again), None)
    write = next((i for i in typed[writer].function.body() if isinstance(i, Write) and i.buffer == buffer), None)
    for k, c in enumerate(computes[first:], first):
        if c.function in readers:
            parts = _parts_read(typed[c.function].function, buffer, c, write)
            behind = (w for w in computes[first:k] if w.function == writer)
            if any(parts.items() <= _at(typed[writer].function, w).items() for w in behind):
                late = c
                break
    if late is not None:
        facts.failures.add(
            Rule.UPDATED_BUFFER,
            f"role `{role.name}`",
            buffer,
            "readers before the write",
            _title(late),
            role.submesh.mesh.span,
        )


def _reads_again(facts: Facts, function: Function, buffer: str) -> bool:
    """Whether recomputation would read a buffer for a value that has a gradient; statistics do not depend on it."""
    for section in function.sections:
        for instr in section.body if section.recompute else ():
            if isinstance(instr, Op) and any(r.value == buffer for r in instr.reads):
                operator = facts.operators.get(instr.operator)
                learns = any(facts.learns(v.name) for v in instr.results)
                if operator is not None and learns and not _statistics(operator, instr):
                    return True
    return False


def _parts_read(function: Function, buffer: str, task: Compute, write: Write | None) -> dict[str, int]:
    """The part of a buffer that a task reads, of those that are written apart from each other."""
    slices = write.slices if write is not None else ()
    readers = [i for i in function.body() if any(r.value == buffer and not r.version for r in reads_of(i))]
    cuts = [{(i.index, i.cut)} if isinstance(i, Slice) else set() for i in readers]
    own = {index.name for index, cut in slices if all((index, cut) in c for c in cuts)}
    return {name: k for name, k in _at(function, task).items() if name in own}


def _at(function: Function, task: Compute) -> dict[str, int]:
    return {index.name: k for index, k in zip(function.time, task.at, strict=True)}


def _reads(function: Function, buffer: str) -> bool:
    return any(p.var.name.value == buffer for p in function.parameters)


def _title(task: Compute) -> str:
    return f"function {task.function} at {list(task.at)}"
