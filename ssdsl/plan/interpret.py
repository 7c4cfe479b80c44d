"""Script and graph to plan: an evaluator without effects. A kind of statement is one row."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.suggest import listed, suggest
from ssdsl.model.graph import Graph
from ssdsl.plan.check import check, warnings
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import CallsTooDeep, MisplacedReturn, UnknownParam
from ssdsl.plan.eval.builtins import builtin_scope
from ssdsl.plan.eval.scope import BROKEN, Scope
from ssdsl.plan.plan import Plan
from ssdsl.plan.statements.assign import assign
from ssdsl.plan.statements.clock import clock
from ssdsl.plan.statements.control import Returned, branch, define, do, let, loop, mesh, require, return_
from ssdsl.plan.statements.dim import dim
from ssdsl.plan.statements.order import order
from ssdsl.plan.statements.param import param
from ssdsl.plan.statements.recompute import recompute
from ssdsl.plan.statements.split import split
from ssdsl.plan.statements.use import use
from ssdsl.text.diagnostic import Diagnostic, PlanError

MOST_MISTAKES = 20
STATEMENTS: dict[type[Any], Callable[..., Returned | None]] = {
    nodes.Param: param,
    nodes.Mesh: mesh,
    nodes.Let: let,
    nodes.Use: use,
    nodes.Dim: dim,
    nodes.Require: require,
    nodes.Return: return_,
    nodes.Split: split,
    nodes.Assign: assign,
    nodes.Order: order,
    nodes.Clock: clock,
    nodes.Recompute: recompute,
    nodes.Do: do,
    nodes.Def: define,
}


def interpret(
    script: nodes.Script, graph: Graph, overrides: Mapping[str, int] | None = None, folder: Path | None = None
) -> Plan:
    """The plan of a script for a model; `folder` is where `use "file.ssp"` looks."""
    return interpret_all(script, graph, overrides, folder)[0]


def interpret_all(
    script: nodes.Script, graph: Graph, overrides: Mapping[str, int] | None = None, folder: Path | None = None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """The plan, and warnings; raises PlanError with the independent mistakes together."""
    ctx = Context(graph, dict(overrides or {}), folder, execute_call)
    scope = Scope(builtin_scope(ctx))
    mistakes = [*unknown_params(script, ctx.overrides), *_execute_all(ctx, scope, script)] or check(ctx)
    if mistakes:
        raise PlanError(*mistakes[:MOST_MISTAKES])
    return plan_of(ctx), tuple(warnings(ctx, script.span.source))


def interpret_part(
    script: nodes.Script, graph: Graph, overrides: Mapping[str, int] | None = None, folder: Path | None = None
) -> tuple[Context, Scope]:
    """What a script says that need not be a whole plan yet: its facts and names; raises PlanError."""
    ctx = Context(graph, dict(overrides or {}), folder, execute_call)
    scope = Scope(builtin_scope(ctx))
    if mistakes := _execute_all(ctx, scope, script):
        raise PlanError(*mistakes[:MOST_MISTAKES])
    return ctx, scope


def _execute_all(ctx: Context, scope: Scope, script: nodes.Script) -> list[Diagnostic]:
    """Carry out a plan's statements; one that fails leaves its names broken, and the others go on."""
    mistakes: list[Diagnostic] = []
    for statement in script.statements:
        try:
            execute(ctx, scope, (statement,))
        except PlanError as e:
            mistakes += e.diagnostics
            _break(ctx, scope, statement)
        except RecursionError:
            mistakes.append(CallsTooDeep(statement.span))
            _break(ctx, scope, statement)
        if len(mistakes) >= MOST_MISTAKES:
            break
    return mistakes


def execute(ctx: Context, scope: Scope, statements: tuple[nodes.Statement, ...]) -> Returned | None:
    """Carry out statements up to a `return`."""
    for s in statements:
        ctx.step(s)
        if isinstance(s, nodes.For):
            returned = loop(ctx, scope, s, execute)
        elif isinstance(s, nodes.If):
            returned = branch(ctx, scope, s, execute)
        else:
            returned = STATEMENTS[type(s)](ctx, scope, s)
        if returned is not None:
            if not ctx.calls:
                raise PlanError(MisplacedReturn(s.span))
            return returned
    return None


def execute_call(ctx: Context, scope: Scope, body: tuple[nodes.Statement, ...]) -> Any:
    """The value that the body of a function returns, if any."""
    returned = execute(ctx, scope, body)
    return None if returned is None else returned.value


def _break(ctx: Context, scope: Scope, statement: nodes.Statement) -> None:
    """What would have been bound by a statement that failed: its uses are no mistakes of their own."""
    for name in _bound(statement):
        scope.values.setdefault(name, BROKEN)
    if isinstance(statement, nodes.Mesh):
        ctx.broken.update(axis.name.text for axis in statement.axes)


def _bound(statement: nodes.Statement) -> Iterator[str]:
    match statement:
        case nodes.Param(name) | nodes.Let(name) | nodes.Mesh(name) | nodes.Def(name):
            yield name.text
        case nodes.Use(_, names):
            yield from (word.text for word in names)
        case nodes.If(branches, other):
            for s in (*(s for b in branches for s in b.body), *other):
                yield from _bound(s)


def unknown_params(script: nodes.Script, overrides: Mapping[str, int]) -> list[Diagnostic]:
    """What the user sets and the plan does not have."""
    known = [s.name.text for s in script.statements if isinstance(s, nodes.Param)]
    has = f"it has {listed(known)}" if known else "it has none"
    return [UnknownParam(None, n, suggest(n, known), has) for n in overrides if n not in known]


def plan_of(ctx: Context) -> Plan:
    """The facts as a plan."""
    return Plan(
        graph=ctx.graph,
        meshes=tuple(ctx.meshes.values()),
        params=ctx.params,
        indices={name: tuple(ctx.indices[name]) for name in ctx.operators if name in ctx.indices},
        placements={name: ctx.placements[name] for name in ctx.operators if name in ctx.placements},
        orders=tuple(ctx.orders),
        clocks=tuple(ctx.clocks),
        recomputes=tuple(ctx.recomputes),
        shards=tuple(ctx.shards),
    )
