"""How the work of a step is divided: the multiplications of a role, and of one of its devices."""

import math

from ssdsl.ir.function import names_along
from ssdsl.ir.program import Program, Role


def role_share(program: Program, role: Role) -> float:
    """The share of all multiplications that a role computes, all of its devices together."""
    flops = {o.name: o.flops for o in program.graph.operators}
    shared = ((f, role.submesh.size / f.submesh.size) for f in program.functions_of(role))  # with other roles
    mine = sum(share * flops[op.operator] for function, share in shared for op in function.operators())
    return mine / max(1, sum(flops.values()))


def device_share(program: Program) -> float:
    """The share of all multiplications that the device with most of them computes: 1 where nothing is divided."""
    flops = {o.name: o.flops for o in program.graph.operators}

    def of_device(role: Role) -> float:
        total = 0.0
        for function in program.functions_of(role):
            for op in function.operators():
                split = names_along(op.splits)
                total += flops[op.operator] / math.prod(n for axis, n in function.submesh.axes if axis in split)
        return total

    return max(map(of_device, program.roles), default=0.0) / max(1, sum(flops.values()))
