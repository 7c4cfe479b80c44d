"""`dim NAME = OPS.name`: a further name for dimensions that the analysis could not name well."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import NameTaken
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted
from ssdsl.plan.eval.expressions import expect
from ssdsl.plan.statements.split import find_dims, no_such_dimension
from ssdsl.plan.values import is_selection
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError


def dim(ctx: Context, s: nodes.DimStatement) -> None:
    """Names all dimensions of the same class, of all operators. Raises PlanError if there is no such dimension, or the
    name is taken."""
    if s.name.text in ctx.facts.aliases or s.name.text in ctx.model.graph.dim_names.values():
        raise PlanError(NameTaken(s.name.span, s.name.text, "the name of a dimension"))
    targets = _targets(s)
    selected = frozenset[str]()
    for at, (target, role) in enumerate(targets):
        try:
            value = expect(ctx, target, is_selection, Wanted.OPERATORS)
        except PlanError:
            if at == len(targets) - 1:
                raise
            continue
        if classes := find_dims(ctx, value.operators, role).classes:
            ctx.facts.aliases[s.name.text] = classes
            return
        selected = value.operators
    ctx.facts.aliases[s.name.text] = frozenset()
    unknown = no_such_dimension(ctx, nodes.Word(targets[-1][1], span=s.value.span), selected)
    raise PlanError(replace(unknown, may_lack=False))


def _targets(s: nodes.DimStatement) -> list[tuple[nodes.Expr, str]]:
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


class NoDimension(Traced):
    """`dim NAME = OPS.name` gives the dimension `name` of these operators a further name.

    For instance `dim tokens = model.linear.seq`, and then `split model by tokens into sp`.
    """

    code = "E0220"
    title = "`dim` names a dimension of operators"
    help = "write `dim name = OPERATORS.dimension`"
