"""How the work of a step is divided: the multiplications of a role, and of one of its devices."""

from ssdsl.ir.function import Function, OpPart, Split
from ssdsl.ir.program import Program, Role
from ssdsl.ir.value import names_of
from ssdsl.model.graph import Operator


def role_share(program: Program, role: Role) -> float:
    """The share of all multiplications that a role computes, all of its devices together."""
    flops = {o.name: o.flops for o in program.graph.operators}
    shared = ((f, role.submesh.size / f.submesh.size) for f in program.functions_of(role))  # with other roles
    mine = sum(share * flops[op.operator] for function, share in shared for op in function.operators())
    return mine / max(1, sum(flops.values()))


def device_share(program: Program) -> float:
    """The share of the multiplications of all functions that the device with most of them computes: 1 where nothing is
    divided. Of parts of unequal sizes the largest counts."""
    operators = program.graph.by_name

    def of_role(role: Role) -> float:
        ops = ((f, op) for f in program.functions_of(role) for op in f.operators())
        return sum(operators[op.operator].flops * _largest_part(f, op, operators[op.operator]) for f, op in ops)

    total = sum(operators[name].flops for name in {op.operator for f in program.functions for op in f.operators()})
    return max(map(of_role, program.roles), default=0.0) / max(1, total)


def _largest_part(function: Function, op: OpPart, operator: Operator) -> float:
    """The share of an operator that the device with the largest part computes, in all parts in time together."""
    axes = {axis for axis, _ in function.submesh.axes}
    share = 1.0
    for split in op.splits:
        if axes.intersection(names_of(split.coordinate)):
            sizes = split.digit.sizes
            whole = operator.dims[split.dim].size if isinstance(split, Split) else 0
            share *= max(sizes) / whole if sizes is not None and whole else 1 / split.digit.parts
    return share
