"""Executes the statements of a block one after another; `_statement` has a case for each kind of statement.

The bodies of `for`, `if` and `def` are executed like the plan itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.eval.expressions import evaluate, truth, turns
from ssdsl.plan.eval.select import NamesParts
from ssdsl.plan.facts import Choice
from ssdsl.plan.statements.buckets import bucket
from ssdsl.plan.statements.choice import number_of_turn, say_what_turn_is_about
from ssdsl.plan.statements.compress import compress
from ssdsl.plan.statements.dim import dim
from ssdsl.plan.statements.keep import keep
from ssdsl.plan.statements.order import clock, names_halves, order
from ssdsl.plan.statements.param import MisplacedParam, param, require
from ssdsl.plan.statements.placement import assign, mesh, meshes
from ssdsl.plan.statements.precision import precision
from ssdsl.plan.statements.recompute_prefetch import prefetch, recompute
from ssdsl.plan.statements.split import split
from ssdsl.plan.statements.use import use
from ssdsl.plan.values import PlanFunction, Value
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

SIMPLE = (
    nodes.LetStatement,
    nodes.ReturnStatement,
    nodes.Do,
    nodes.OrderStatement,
    nodes.ClockStatement,
)  # statements without a block that may name tasks


class Returned(Record):
    """The value of a `return`, passed up through the blocks."""

    value: Value


def execute(ctx: Context, statements: tuple[nodes.Statement, ...]) -> Returned | None:
    """Executes statements up to a `return`. Raises PlanError at the first mistake."""
    for s in statements:
        ctx.budget.spend(s)
        try:
            returned = _statement(ctx, s)
        except NamesParts as named:
            ctx.facts.named_parts.append(named.part)
            continue
        if returned is not None:
            if not ctx.stack.functions:
                raise PlanError(MisplacedReturn(s.span))
            return returned
    return None


def _statement(ctx: Context, s: nodes.Statement) -> Returned | None:
    """Executes one statement. A new kind of statement is a new case: mypy reports it as missing here."""
    facts = ctx.facts
    if not ctx.orders and isinstance(s, SIMPLE) and not facts.halved and s not in facts.skipped:
        facts.skipped[s] = None
        facts.halved = names_halves(s)
    match s:
        case nodes.ForStatement(bindings, (nodes.MeshStatement() as one,), True):
            meshes(ctx, one, bindings)
        case nodes.ForStatement(bindings, body):
            return _loop(ctx, bindings, body)
        case nodes.IfStatement():
            return _branch(ctx, s)
        case nodes.EitherStatement():
            return _either(ctx, s)
        case nodes.ReturnStatement(value):
            return Returned(evaluate(ctx, value))
        case nodes.Do(call):
            evaluate(ctx, call)
        case nodes.DefStatement(_, formals):
            ctx.scope.check_free(*formals)
            ctx.scope.bind(s.name, Procedure(s, ctx.scope))
        case nodes.ParamStatement():
            param(ctx, s)
        case nodes.MeshStatement():
            mesh(ctx, s)
        case nodes.LetStatement():
            ctx.scope.check_free(*s.formals or ())
            ctx.scope.bind(s.name, evaluate(ctx, s.value) if s.formals is None else LetFunction(s, ctx.scope))
        case nodes.UseStatement():
            use(ctx, s, execute)
        case nodes.DimStatement():
            dim(ctx, s)
        case nodes.SplitStatement():
            split(ctx, s)
        case nodes.AssignStatement():
            assign(ctx, s)
        case nodes.OrderStatement():
            order(ctx, s)
        case nodes.ClockStatement():
            clock(ctx, s)
        case nodes.RecomputeStatement():
            recompute(ctx, s)
        case nodes.PrefetchStatement():
            prefetch(ctx, s)
        case nodes.BucketStatement():
            bucket(ctx, s)
        case nodes.KeepStatement():
            keep(ctx, s)
        case nodes.PrecisionStatement():
            precision(ctx, s)
        case nodes.CompressStatement():
            compress(ctx, s)
        case nodes.RequireStatement():
            require(ctx, s)
        case _:
            assert_never(s)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Procedure(PlanFunction):
    """`def f(a, b):` and its block. A call adds the facts of the block to the plan."""

    node: nodes.DefStatement

    def result(self, ctx: Context) -> Value:
        returned = execute(ctx, self.node.body)
        return None if returned is None else returned.value


@dataclass(frozen=True, slots=True, eq=False)
class LetFunction(PlanFunction):
    """`let f(s, m) = expression`."""

    node: nodes.LetStatement

    def result(self, ctx: Context) -> Value:
        return evaluate(ctx, self.node.value)


def _loop(ctx: Context, bindings: tuple[nodes.Binding, ...], body: tuple[nodes.Statement, ...]) -> Returned | None:
    choices = [nodes.name_of(s) for s in body if isinstance(s, nodes.ChoiceStatement)]
    for inner in turns(ctx, bindings):
        returned = execute(inner, body)
        for name in choices:
            say_what_turn_is_about(inner, name, body)
        if returned is not None:
            return returned
    return None


def _branch(ctx: Context, s: nodes.IfStatement) -> Returned | None:
    """Executes the first block whose test holds. A block opens no scope of its own, and declares no parameters."""
    _check_no_param((*(b.body for b in s.branches), s.other))
    for b in s.branches:
        if truth(ctx, b.test):
            return execute(ctx, b.body)
    return execute(ctx, s.other)


def _check_no_param(blocks: Iterable[tuple[nodes.Statement, ...]]) -> None:
    for statement in (statement for body in blocks for statement in body):
        if isinstance(statement, nodes.ParamStatement):
            raise PlanError(MisplacedParam(statement.span))


def _either(ctx: Context, s: nodes.EitherStatement) -> Returned | None:
    """Executes the branch that a search has chosen for this turn, or for all turns, else the first. In a file that
    another one uses, it is always the first."""
    _check_no_param(s.branches)
    number = number_of_turn(ctx, s.name, Choice(tuple(range(len(s.branches))), 0, s.span))
    if not 0 <= number < len(s.branches):
        raise PlanError(NoSuchBranch(s.span, number, len(s.branches)))
    return execute(ctx, s.branches[number])


class NoSuchBranch(Traced):
    """`--set either:7=1` chooses a branch of the `either` in line 7: 0 is the first."""

    code = "E0245"
    title = "`either` has no branch {number}"
    help = "choose a number from 0 to {last}"
    number: int
    count: int

    @property
    def last(self) -> int:
        return self.count - 1


class MisplacedReturn(Traced):
    """`return` gives the value of a function, and is not allowed outside one."""

    code = "E0233"
    title = "`return` stands outside of a function"
    help = "remove it, or bind the value with `let`"
