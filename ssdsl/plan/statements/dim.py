"""`dim NAME = OPS.name`: a further name for dimensions that the analysis could not name well."""

from ssdsl.lang import nodes
from ssdsl.lang.suggest import listed, suggest
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import NameTaken
from ssdsl.plan.errors.split import NoDimension, NoSuchDimension
from ssdsl.plan.eval.expressions import expect
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Selection
from ssdsl.text.diagnostic import PlanError


def dim(ctx: Context, scope: Scope, s: nodes.Dim) -> None:
    """All dimensions of the same class, of any operator, get the name."""
    if s.name.text in ctx.aliases or s.name.text in ctx.graph.dim_names.values():
        raise PlanError(NameTaken(s.name.span, s.name.text, None, "a dimension has this name"))
    targets = list(_targets(s))
    for at, (target, role) in enumerate(targets):
        try:
            value = expect(ctx, scope, target, Selection, "a selection of operators")
        except PlanError:
            if at == len(targets) - 1:
                raise
            continue
        operators = ctx.ordered(value.operators)
        classes = {d.cls for op in operators for d in op.dims if d.name in (role, f"{role}.0")}
        if classes:
            ctx.aliases[s.name.text] = classes
            return
        known = dict.fromkeys(d.name for op in operators for d in op.dims)
    hint = f"they have {listed(known, 12)}" if known else ""
    raise PlanError(NoSuchDimension(s.value.span, role, suggest(role, known), hint))


def _targets(s: nodes.Dim) -> list[tuple[nodes.Expr, str]]:
    """The ways to read `a.b.c`: operators `a` and name `b.c`, or operators `a.b` and name `c`."""
    found: list[tuple[nodes.Expr, str]] = []
    e, role = s.value, ""
    while isinstance(e, nodes.Attribute):
        role = f"{e.name.text}.{role}" if role else e.name.text
        e = e.target
        found.append((e, role))
    if not found:
        raise PlanError(NoDimension(s.value.span))
    return found[::-1]
