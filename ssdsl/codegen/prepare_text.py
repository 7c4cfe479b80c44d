"""The functions of a role's file that run outside its blocks: constants once, data once per step."""

from ssdsl.codegen.expressions import assignment, expression
from ssdsl.codegen.quote import quoted
from ssdsl.codegen.scope import Scope
from ssdsl.codegen.steps import conversion_text
from ssdsl.lower.cuts import operator_cuts
from ssdsl.lower.prepare import constant_inputs
from ssdsl.lower.schedule import Prepared
from ssdsl.model.graph import Operator, Stage


def constants_text(scope: Scope) -> str:
    """`constants(c, device)`: what depends on no input and no weight."""
    by_name = {o.name: o for o in scope.schedule.graph.operators}
    used = dict.fromkeys(n for p in _here(scope) for n in p.operators if by_name[n].stage is Stage.CONSTANT)
    lines = [
        "def constants(c, device):",
        '    """Adds to `c` the tensors that depend on no input and no weight."""',
        *(_line(by_name[n], [f"c[{quoted(r)}]" for r in constant_inputs(by_name[n])], scope) for n in used),
        "    return c",
    ]
    return "\n".join(lines)


def prepare_text(scope: Scope) -> str:
    """`prepare(c)`: what depends on inputs only, in the layouts that the blocks read."""
    lines = [
        "def prepare(c):",
        '    """Adds to `c`, which has the batch and the constants, what the blocks read of them."""',
        *(line for p in _here(scope) for line in _prepared(p, scope)),
        "    return c",
    ]
    return "\n".join(lines)


def _here(scope: Scope) -> list[Prepared]:
    submeshes = {b.submesh for b in scope.blocks}
    return [p for p in scope.schedule.prepared if p.submesh in submeshes]


def _prepared(p: Prepared, scope: Scope) -> list[str]:
    """Data operators in order, each value converted before it is first read."""
    lines: list[str] = []
    pending = {c.result: c for c in p.conversions}
    by_name = {o.name: o for o in scope.schedule.graph.operators}
    axes = frozenset(a for a, _ in p.submesh.axes)

    def need(value: str) -> str:
        if value in pending:
            conversion = pending.pop(value)
            right = conversion_text(conversion, need(conversion.value), (), scope.group)
            lines.append(f"    c[{quoted(value)}] = {right}")
        return f"c[{quoted(value)}]"

    for operator in (o for n in p.operators if (o := by_name[n]).stage is Stage.DATA):
        reads = [need(r) for r in p.reads[operator.name]]
        lines.append(_line(operator, reads, scope, axes))
    for value in list(pending):
        need(value)
    return lines


def _line(operator: Operator, reads: list[str], scope: Scope, axes: frozenset[str] = frozenset()) -> str:
    indices = scope.schedule.plan.indices.get(operator.name, ())
    cuts = tuple(c for c in operator_cuts(operator, indices, axes) if c.in_space)
    targets = assignment(operator, [f"c[{quoted(o.value)}]" for o in operator.outputs])
    return f"    {targets} = {expression(operator, reads, cuts, group=scope.group)}"
