"""Checks the whole: every operator that is needed is in one function, and loss and results are complete."""

from ssdsl.ir.function import Function
from ssdsl.ir.program import Free
from ssdsl.ir.value import Axis, Coordinate, Time
from ssdsl.model.graph import Stage
from ssdsl.prove.facts import ProofFacts, TypedFunction
from ssdsl.prove.failures import Rule
from ssdsl.prove.types.local import Local


def check_operators(facts: ProofFacts) -> None:
    """Adds a failure for each operator that is in several functions, or in none, though the loss, a buffer's new value
    or an output depends on it."""
    found: dict[str, list[Function]] = {}
    for function in facts.program.functions:
        for op in function.operators():
            found.setdefault(op.operator, []).append(function)
    wanted = {facts.graph.loss, *facts.graph.updates.values(), *facts.graph.outputs.values()}
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
    """Adds a failure unless the reported loss is summed over exactly the axes and indices in time along which it is a
    partial sum."""
    loss = facts.program.loss
    for number, one in typed.items():
        function = one.function
        names = [o.name for k, o in enumerate(function.outputs) if k == function.loss]
        if names != ([loss.name] if number == loss.function else []) or (function.loss is not None and not names):
            facts.fail(Rule.LOSS, f"function `{function.name}`", facts.graph.loss, loss.name, names)
    if loss.name not in typed[loss.function].types or loss.name.value != facts.graph.loss:
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
