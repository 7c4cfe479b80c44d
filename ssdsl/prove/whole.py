"""The whole: every operator that the loss needs runs, the loss is complete, buffers take their new values."""

from ssdsl.ir.function import Function, Op
from ssdsl.ir.value import Axis, Name, Time
from ssdsl.model.graph import Operator, Ref, Stage
from ssdsl.prove.facts import Facts, Typed
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.local import Local, of_type
from ssdsl.ir.value import Type


def check_operators(facts: Facts) -> None:
    """Each placed operator on which the loss (or a buffer's new value) depends is in exactly one function."""
    found: dict[str, list[Function]] = {}
    for function in facts.program.functions:
        for op in function.operators():
            found.setdefault(op.operator, []).append(function)
    wanted = {facts.graph.loss, *facts.graph.updates.values()}
    for operator in reversed(facts.graph.operators):
        here = found.get(operator.name, [])
        is_needed = not wanted.isdisjoint(o.value for o in operator.outputs)
        if is_needed:
            wanted.update(o.value for o in operator.inputs)
        if len(here) > 1 or (is_needed and operator.stage is Stage.COMPUTE and not here):
            names = ", ".join(f.name for f in here) or "none"
            span = next((i.span for i in facts.program.plan.indices.get(operator.name, ())), None)
            facts.failures.add(Rule.COVERED, f"operator `{operator.name}`", "", "one function", names, span)


def check_loss(facts: Facts, typed: dict[int, Typed]) -> None:
    """The reported loss is summed over exactly the axes and the parts in time over which it is a partial sum."""
    loss, failures = facts.program.loss, facts.failures
    for number, one in typed.items():
        function = one.function
        names = [function.outputs[function.loss].name] if function.loss in range(len(function.outputs)) else []
        if names != ([loss.name] if number == loss.function else []) or (function.loss is not None and not names):
            failures.add(Rule.LOSS, f"function `{function.name}`", facts.graph.loss, loss.name, names)
    if loss.function not in typed or loss.name not in typed[loss.function].types or loss.name.value != facts.graph.loss:
        failures.add(Rule.LOSS, "the loss", loss.name, facts.graph.loss, f"function {loss.function}")
        return
    function, local = typed[loss.function].function, typed[loss.function].types[loss.name]
    owed = frozenset([*(Axis(a) for a in loss.axes), *(Time(t.name) for t in function.time)])
    if local != Local(partial=owed) or len(set(loss.axes)) != len(loss.axes):
        failures.add(Rule.LOSS, "the loss", loss.name, local, Local(partial=owed), function.submesh.mesh.span)


def check_buffers(facts: Facts, typed: dict[int, Typed]) -> None:
    """A buffer takes its new value once a step, in the place where it lives and in its layout."""
    homes: dict[str, int] = {}
    for param in facts.program.params:
        homes[param.weight] = homes.get(param.weight, 0) + 1
    for one in typed.values():
        function = one.function
        for op in function.operators():
            operator = facts.operators.get(op.operator)
            for buffer, name in [] if operator is None else _updates(facts, operator, op):
                try:
                    _check_update(facts, one, buffer, name, homes)
                except Wrong as wrong:
                    facts.failures.wrong(wrong, f"function `{function.name}`, operator `{op.operator}`", buffer)


def _updates(facts: Facts, operator: Operator, op: Op) -> "list[tuple[str, Name]]":
    """The buffers that an operator gives new values, and the local values that are these."""
    found = [(b, v.name) for v in op.results for b, value in facts.graph.updates.items() if value == v.name.value]
    if operator.kind == "batch_norm" and operator.args[6] is True:  # it changes its running statistics in place
        statistics = {a.value for a in operator.args[4:6] if isinstance(a, Ref)}
        found += [(r.value, r) for r in op.reads if r.value in statistics]
    return found


def _check_update(facts: Facts, one: Typed, buffer: str, name: Name, homes: dict[str, int]) -> None:
    function = one.function
    param = facts.params.get((buffer, function.submesh))
    if homes.get(buffer, 0) > (1 if param is not None else 0):
        raise Wrong(Rule.UPDATED_BUFFER, "a buffer that lives where it is updated only", f"{homes[buffer]} homes")
    if any(index.parts > 1 for index in function.time):
        raise Wrong(Rule.UPDATED_BUFFER, "one task", f"one for each {function.time[0].name}")
    if param is None:
        return
    if name.value == buffer and name not in {p.var.name for p in function.parameters}:
        raise Wrong(Rule.UPDATED_BUFFER, "the buffer itself", f"a copy, {name}")
    home = of_type(Type(param.layout), function.submesh.axes, ())
    if one.types.get(name) != home:
        raise Wrong(Rule.UPDATED_BUFFER, home, one.types.get(name))
