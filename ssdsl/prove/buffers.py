"""Buffers: each takes its new value once a step, where it lives, in its layout, and behind all that reads the old."""

from ssdsl.ir.action import Compute
from ssdsl.ir.function import Function, Op, Slice, Write, reads_of
from ssdsl.ir.layout import Cut
from ssdsl.ir.program import Role
from ssdsl.ir.value import Name, Time, TimeIndex, Type
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
    """Every other function that reads a buffer runs before the one that writes it, and none runs again behind it.

    Of a buffer that is written part by part, by an index in time, the readers of a part run before that part's write.
    """
    readers = {n: _parts_read(one.function, buffer) for n, one in typed.items() if n != writer}
    parts = _parts_written(typed[writer].function, buffer)
    shared = {n: [i.name for i, cut in parts if (i, cut) in read] for n, read in readers.items() if read is not None}
    computes = [c for c in role.computes() if c.phase is Phase.FORWARD]
    again = {n for n in {*shared, writer} if _reads_again(facts, typed[n].function, buffer)}
    late = next((c for c in computes if c.function in again), None)
    written: list[dict[str, int]] = []
    for task in computes:
        at = dict(zip((i.name for i in typed[task.function].function.time), task.at, strict=False))
        if task.function == writer:
            written.append(at)
        elif task.function in shared and any(all(at[i] == w[i] for i in shared[task.function]) for w in written):
            late = task
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


def _parts_read(function: Function, buffer: str) -> set[tuple[TimeIndex, Cut]] | None:
    """The parts of a buffer, by indices in time, that are all a function reads of it; None if it reads nothing."""
    names = {p.var.name for p in function.parameters if p.var.name.value == buffer}
    if not names:
        return None
    readers = [i for i in function.body() if names.intersection(reads_of(i))]
    parts = [{(i.index, i.cut)} if isinstance(i, Slice) else set() for i in readers]
    return set.intersection(*parts) if parts else set()


def _parts_written(function: Function, buffer: str) -> tuple[tuple[TimeIndex, Cut], ...]:
    """The parts of a buffer, by indices in time, that a function writes one after another."""
    writes = (i for i in function.body() if isinstance(i, Write) and i.buffer == buffer)
    return next((w.slices for w in writes), ())


def _title(task: Compute) -> str:
    return f"function {task.function} at {list(task.at)}"
