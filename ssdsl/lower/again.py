"""Lowers a plan again if it differs from the last one only in the order of tasks, or in the places of statements.

Formed functions depend on which sets of tasks are ordered, but not on the orders themselves, so functions formed for
one order serve for others. And nothing but spans in a program depends on the places of statements in the text.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from ssdsl.ir.program import Program
from ssdsl.lower.lower import scheduled
from ssdsl.lower.lowering import Lowering
from ssdsl.plan.plan import HALVES, OpPlan, Plan


@dataclass(frozen=True, slots=True)
class Lowered:
    """A plan as its text says it, its formed functions, and its program. Two with the same object `like` have programs
    that differ only in the places of statements."""

    plan: Plan
    formed: Lowering
    program: Program
    like: object


def lowered_again(last: Lowered, plan: Plan) -> Lowered | None:
    """The plan with its program, if it forms the same functions as the last one; else None. Raises PlanError for an
    order that is a cycle."""
    if last.formed.graph is not plan.graph or not forms_the_same(last.plan, plan):
        return None
    formed = replace(last.formed, plan=_as_formed(last, plan))
    if (last.plan.orders, last.plan.clocks) != (plan.orders, plan.clocks):
        return Lowered(plan, formed, scheduled(formed), object())
    places = dict(zip(last.plan.order_spans(), plan.order_spans(), strict=True))
    stated = {task: tuple(places[span] for span in spans) for task, spans in last.program.stated.items()}
    return Lowered(plan, formed, replace(last.program, plan=formed.plan, stated=stated), last.like)


def forms_the_same(a: Plan, b: Plan) -> bool:
    """Whether two plans for one graph form the same functions: they say the same of operators and state, and order the
    same sets, by the same indices."""
    return (
        (a.meshes, a.shards) == (b.meshes, b.shards)
        and _ordered(a) == _ordered(b)
        and a.operators.keys() == b.operators.keys()
        and _are_equal({(id(r), id(b.operators[name])): (r, b.operators[name]) for name, r in a.operators.items()})
    )


def _are_equal(pairs: dict[tuple[int, int], tuple[OpPlan, OpPlan]]) -> bool:
    return all(one == other for one, other in pairs.values())


def _ordered(plan: Plan) -> frozenset[Hashable]:
    """The sets of operators that a plan orders, each with the indices that it fixes, and whether in halves of a
    backward."""
    return frozenset((t.number, frozenset(name for name, _ in t.fixed), t.phase in HALVES) for t in plan.ordered())


def _as_formed(last: Lowered, plan: Plan) -> Plan:
    """The plan without the indices that forming took away from operators of the last one."""
    before, after = last.plan.operators, last.formed.plan.operators
    left = {name: {i.name for i in record.indices} for name, record in after.items() if record is not before.get(name)}
    return plan.cutting({o: tuple(i for i in plan.of(o).indices if i.name in names) for o, names in left.items()})
