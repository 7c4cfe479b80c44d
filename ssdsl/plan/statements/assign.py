"""`assign`: where operators run."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.place import AssignedTwice
from ssdsl.plan.eval.expressions import evaluate, expect
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Devices
from ssdsl.plan.plan import Placement
from ssdsl.plan.statements.split import whole_operators
from ssdsl.text.diagnostic import PlanError


def assign(ctx: Context, scope: Scope, s: nodes.Assign) -> None:
    """Place the COMPUTE operators of a selection; the others run wherever their consumers are."""
    operators = whole_operators(ctx, evaluate(ctx, scope, s.operators), s.operators, "assign")
    devices = expect(ctx, scope, s.devices, Devices, "devices, a mesh or a slice of one")
    placement = Placement(devices.mesh, devices.fixed, s.span)
    twice = []
    for op in operators:
        if op.name not in ctx.compute:
            continue
        known = ctx.placements.setdefault(op.name, placement)
        if (known.mesh, known.fixed) != (placement.mesh, placement.fixed):
            twice.append((op, known))
    if twice:
        op, known = twice[0]
        more = f"and so are {len(twice) - 1} more operators" if len(twice) > 1 else ""
        raise PlanError(AssignedTwice(s.span, op.path or op.name, describe(known), more, known.span))


def describe(placement: Placement) -> str:
    """`gpus[pp = 1]`."""
    fixed = ", ".join(f"{axis} = {at}" for axis, at in placement.fixed)
    return f"{placement.mesh}[{fixed}]" if fixed else placement.mesh
