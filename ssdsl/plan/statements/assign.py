"""`assign`: places operators on devices."""

from dataclasses import replace
from functools import partial

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict
from ssdsl.plan.errors.values import Wanted
from ssdsl.plan.eval.expressions import evaluate, expect
from ssdsl.plan.eval.select import whole_operators
from ssdsl.plan.eval.values import Devices, is_a
from ssdsl.plan.plan import Placement
from ssdsl.text.diagnostic import PlanError


def assign(ctx: Context, s: nodes.AssignStatement) -> None:
    """Places the COMPUTE operators of a selection; the others run wherever their consumers are."""
    operators = whole_operators(ctx, evaluate(ctx, s.operators), s.operators, "assign")
    devices = expect(ctx, s.devices, is_a(Devices), Wanted.DEVICES)
    place(ctx, operators, Placement(devices.mesh, devices.fixed, s.span))


def place(ctx: Context, operators: frozenset[str], placement: Placement) -> None:
    """Places operators; raises PlanError if some of them are placed elsewhere already."""
    records = ctx.facts.operators.at
    named = ctx.model.only_compute(operators)
    numbers, stays = ctx.model.numbers(named), named <= ctx.model.graph.repeated
    placed = [(n, record.place) for n in numbers if (record := records[n]) is not None and record.place is not None]
    taken = {n for n, _ in placed}
    put = partial(replace, place=placement, stays=stays)
    ctx.facts.revise([n for n in numbers if n not in taken] if taken else numbers, put)
    twice = [(ctx.model.graph.operators[n], place) for n, place in placed if place != placement]
    if twice:
        op, known = twice[0]
        raise PlanError(AssignedTwice(placement.span, op.module, known, len(twice), first=known.span))


class AssignedTwice(Conflict):
    """Two `assign` put one operator on different devices."""

    code = "E0253"
    title = "`{operator}` is already assigned to `{before}`"
    note = "{more}"
    help = "leave it out of one: `assign (A - B) to ...`"
    earlier = "assigned here first"
    operator: str
    before: Placement
    count: int  # of operators like this

    @property
    def more(self) -> str:
        return f"and so are {self.count - 1} more operators" if self.count > 1 else ""
