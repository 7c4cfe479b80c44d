"""Rewrites a plan before it is lowered: `REWRITES` are the rules, in order. docs/glossary.md says what each does.

A rule is a function of a plan. It returns that plan itself, or one about another graph, which an `Edit` makes of it.
"""

from collections.abc import Callable

from ssdsl.plan.plan import Plan
from ssdsl.rewrite.copy_constants import copy_constants
from ssdsl.rewrite.copy_operators import copy_operators
from ssdsl.rewrite.divide_dims import divide_dims
from ssdsl.rewrite.route_rows import route_rows
from ssdsl.rewrite.share_weights import share_weights

Rule = Callable[[Plan], Plan]
AfterRule = Callable[[str, Plan], None]

REWRITES: tuple[Rule, ...] = (copy_constants, copy_operators, share_weights, route_rows, divide_dims)


def rewrite(plan: Plan, after: AfterRule | None = None) -> Plan:
    """The plan as it is lowered. `after` is called with each rule's name and result. Raises PlanError for a plan that a
    rule cannot change as the plan asks."""
    for rule in REWRITES:
        plan = rule(plan)
        if after is not None:
            after(rule.__name__, plan)
    return plan
