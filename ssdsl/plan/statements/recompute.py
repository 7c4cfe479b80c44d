"""`recompute`: checkpoints, one per unit of the selection."""

from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.split import RecomputedTwice
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.units import repeated_units
from ssdsl.plan.eval.values import Selection
from ssdsl.plan.plan import Recompute
from ssdsl.plan.statements.split import whole_operators
from ssdsl.text.diagnostic import PlanError


def recompute(ctx: Context, scope: Scope, s: nodes.Recompute) -> None:
    """Add the units: those of the path, the elements of a list, or else the repeated modules."""
    value = evaluate(ctx, scope, s.operators)
    if isinstance(value, tuple) and value:
        for item in value:
            whole_operators(ctx, item, s.operators, "recompute")
        found = [item.operators for item in value]
    else:
        whole_operators(ctx, value, s.operators, "recompute")
        found = _units(ctx, value)
    units = [unit for names in found if (unit := ctx.only_compute(names))]
    known = {name: (unit, r) for r in ctx.recomputes for unit in r.units for name in unit}
    fresh = [unit for unit in units if _is_new(ctx, s, unit, known)]
    if fresh:
        ctx.recomputes.append(Recompute(tuple(fresh), s.span))


def _units(ctx: Context, value: Selection) -> list[frozenset[str]]:
    if value.units:
        return list(value.units)
    return [run for _, names in repeated_units(ctx, value.operators) for run in _runs(ctx, names)]


def _runs(ctx: Context, names: list[str]) -> list[frozenset[str]]:
    """A unit as what follows each other without gaps: of the split operators of a layer, attention and MLP apart."""
    runs: list[list[str]] = []
    place = ctx.compute_rank
    for name in names:
        if runs and place[name] == place[runs[-1][-1]] + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return [frozenset(run) for run in runs]


def _is_new(ctx: Context, s: nodes.Recompute, unit: frozenset[str], known: dict[str, Any]) -> bool:
    """False for a unit that was said before; raises PlanError if some of its operators belong to another."""
    for op in ctx.ordered(unit):
        other, fact = known.get(op.name, (unit, None))
        if other != unit:
            raise PlanError(RecomputedTwice(s.span, op.path or op.name, fact.span))
        known[op.name] = (unit, fact or Recompute((unit,), s.span))
        if fact is not None:
            return False
    return True
