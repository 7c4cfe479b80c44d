"""`param`, a number of the plan that the user may set, known without a model; and `require`, the plan's own
precondition."""

from collections.abc import Iterator

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import spell
from ssdsl.lang.suggest import joined
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import NameTaken, UnknownName
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted, items_of
from ssdsl.plan.eval.expressions import evaluate, truth, whole_number
from ssdsl.plan.facts import Choice, NumberOrigin
from ssdsl.plan.statements.choice import number_of_turn
from ssdsl.plan.values import is_whole
from ssdsl.text.diagnostic import PlanError

FUNCTIONS = ("min", "max")


def param(ctx: Context, s: nodes.ParamStatement) -> None:
    """Binds a parameter to the value that the user set, else to its default. In a loop of the plan it has a value in
    each turn. In a file that another one uses, it is always the default.

    Raises PlanError in another block; for a default, or numbers to try, made of more than numbers and earlier
    parameters; and for a default that is not among the numbers to try, unless these follow a parameter that the user
    may have set.
    """
    # the scope of a file lies in that of the built-in words alone
    is_in_loop = ctx.scope.parent is None or ctx.scope.parent.parent is not None
    if is_in_loop and ctx.stack.functions:
        raise PlanError(MisplacedParam(s.span))
    value, domain = _number(ctx, s.default), _domain(ctx, s)
    overrides = () if ctx.stack.files else ctx.overrides
    follows = overrides and any(True for e in (s.default, s.domain) if e is not None for _ in names_in(e))
    if domain and value not in domain and s.name.text not in overrides and not follows:
        raise PlanError(DefaultNotTried(s.default.span, s.name.text, value, domain))
    if is_in_loop:
        other = ctx.facts.choices.get(s.name.text)
        if s.name.text in ctx.facts.params or (other is not None and other.span != s.span):
            raise PlanError(NameTaken(s.name.span, s.name.text, first=None if other is None else other.span))
        ctx.scope.bind(s.name, number_of_turn(ctx, s.name.text, Choice(domain or (value,), value, s.span)))
        return
    if ctx.stack.files:
        ctx.scope.bind(s.name, value)
        return
    value = ctx.overrides.get(s.name.text, value)
    ctx.scope.bind(s.name, value)
    ctx.facts.params[s.name.text] = value
    ctx.facts.domains[s.name.text] = domain


def _number(ctx: Context, e: nodes.Expr) -> int:
    _check_constant(ctx, e)
    return whole_number(ctx, e)


def _domain(ctx: Context, s: nodes.ParamStatement) -> tuple[int, ...]:
    """The numbers that a sweep tries, without duplicates; none without `in`."""
    if s.domain is None:
        return ()
    _check_constant(ctx, s.domain)
    return tuple(dict.fromkeys(items_of(ctx, evaluate(ctx, s.domain), is_whole, s.domain, Wanted.TRIED)))


def _check_constant(ctx: Context, e: nodes.Expr) -> None:
    """Raises PlanError for a name of anything but an earlier parameter, `min` or `max`; without diagnostics for one
    whose statement has failed."""
    known = (*ctx.facts.params, *FUNCTIONS)
    for name in names_in(e):
        if name.text in known:
            continue
        if name.text not in ctx.scope.names():
            raise PlanError(UnknownName(name.span, name.text, known, is_of_param=True))
        ctx.scope.find(name.text, name.span)
        raise PlanError(NotConstant(name.span, name.text))


def origin_of(ctx: Context, e: nodes.Expr) -> NumberOrigin | None:
    """The parameter that an expression names, if the expression is just a name."""
    if not isinstance(e, nodes.NameExpression) or e.text not in ctx.facts.params:
        return None
    value = ctx.facts.params[e.text]
    if ctx.scope.find(e.text, e.span) != value:  # an inner scope gave the name another meaning
        return None
    return NumberOrigin(e.text, value, e.text in ctx.overrides)


def names_in(e: nodes.Node) -> Iterator[nodes.NameExpression]:
    """All names in an expression."""
    return (node for node in nodes.walk(e) if isinstance(node, nodes.NameExpression))


class NotConstant(Traced):
    """The default of a parameter consists of numbers and earlier parameters: `param M = 2 * S`.

    So the plan's parameters can be listed without a model.
    """

    code = "E0226"
    title = "the default of a parameter cannot depend on `{name}`"
    help = "use numbers, earlier parameters, `min` and `max`; other values are bound by `let`"
    name: str


class DefaultNotTried(Traced):
    """`param T = 3 in [1, 2, 4]`: the default must be one of the numbers that a search tries."""

    code = "E0282"
    title = "the default of `{name}`, {value}, is not among the numbers that are tried"
    help = "add {value} to the list, or choose one of {listed}"
    name: str
    value: int
    domain: tuple[int, ...]

    @property
    def listed(self) -> str:
        return joined([*map(str, self.domain)], "or")


class MisplacedParam(Traced):
    """`param` is inside a function, a condition or a branch of `either`. Parameters are at the top of the plan, so that
    they are known without a model, or in one of its loops, where they have a value in each turn."""

    code = "E0227"
    title = "`param` stands inside a block"
    help = "move it to the top of the plan"


def require(ctx: Context, s: nodes.RequireStatement) -> None:
    """Raises PlanError if the precondition does not hold."""
    if not truth(ctx, s.test):
        raise PlanError(RequireFailed(s.test.span, spell(s.test), s.why, tuple(ctx.facts.params.items())))


class RequireFailed(Traced):
    """A `require` of the plan, its own precondition, does not hold for these parameters and this model."""

    code = "E0228"
    title = "{fact}"
    label = "this does not hold"
    note = "{values}"
    test: str
    why: str | None
    params: tuple[tuple[str, int], ...]  # the values in force

    @property
    def fact(self) -> str:
        return self.why or f"`{self.test}` does not hold"

    @property
    def values(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.params)

    @property
    def change(self) -> str:
        other = "choose other parameters with `--set`" if self.params else ""
        if self.calls:  # in a function: it may be wrong what the plan gives to it
            return f"give the call other arguments{', or ' if other else ''}{other}"
        return other or "change what the plan says above this line"
