"""What a script declares, known without a model: its parameters and functions."""

from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.lang.formatter.comments import summary
from ssdsl.model.graph import Graph
from ssdsl.plan.context import begin
from ssdsl.plan.eval.builtins import builtin_scope
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.model_index import index_model
from ssdsl.plan.statements.param import param


@dataclass(frozen=True, slots=True)
class ParamDecl:
    """A parameter with its default and what the plan says of it."""

    name: str
    default: int
    help: str


@dataclass(frozen=True, slots=True)
class Declarations:
    """`is_plan` tells a whole plan, which has a mesh, from a file that only defines functions."""

    summary: str
    is_plan: bool
    params: tuple[ParamDecl, ...]
    functions: tuple[str, ...]


def params(script: nodes.Script) -> tuple[ParamDecl, ...]:
    """The parameters of a plan; raises PlanError if a default is no number."""
    ctx = begin(index_model(Graph("", (), {}, "", {}, {})))
    scope = Scope(builtin_scope(ctx))
    found = []
    for s in script.statements:
        if isinstance(s, nodes.Param):
            param(ctx, scope, s)
            found.append(ParamDecl(s.name.text, ctx.facts.params[s.name.text], s.help or ""))
    return tuple(found)


def declarations(script: nodes.Script) -> Declarations:
    """What a listing of plans shows of one."""
    functions = tuple(
        f"{s.name.text}({', '.join(w.text for w in s.formals)})"
        for s in script.statements
        if isinstance(s, nodes.Def) and not s.name.text.startswith("_")
    )
    is_plan = any(isinstance(s, nodes.Mesh) for s in script.statements)
    return Declarations(summary(script.span.source), is_plan, params(script), functions)
