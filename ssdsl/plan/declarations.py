"""The declarations of a script, found without a model: its parameters and functions, and those that nothing reads."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from ssdsl.lang import nodes
from ssdsl.lang.formatter.comments import summary
from ssdsl.model.graph import Graph
from ssdsl.plan.context import begin
from ssdsl.plan.errors.names import NeverUsed
from ssdsl.plan.model_index import index_model
from ssdsl.plan.statements.builtins import with_builtins
from ssdsl.plan.statements.param import param
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic, PlanError


class ParamDecl(Record):
    """A parameter with its default, its help text, and the numbers that a sweep tries."""

    name: str
    default: int
    help: str
    domain: tuple[int, ...] = ()


class Declarations(Record):
    """A plan as a listing shows it. `is_plan` tells a whole plan, which has a mesh, from a file that only defines
    functions."""

    summary: str
    is_plan: bool
    params: tuple[ParamDecl, ...]
    functions: tuple[str, ...]


def params(script: nodes.Script, overrides: Mapping[str, int] | None = None) -> tuple[ParamDecl, ...]:
    """The parameters of a plan, with some of them set. Raises PlanError if a default is no number."""
    ctx = with_builtins(begin(index_model(Graph("", (), {}, "", {}, {})), overrides))
    found = []
    for s in script.statements:
        if isinstance(s, nodes.ParamStatement):
            param(ctx, s)
            name = s.name.text
            found.append(ParamDecl(name, ctx.facts.params[name], s.help or "", ctx.facts.domains[name]))
    return tuple(found)


def open_settings(script: nodes.Script, settings: Mapping[str, int] | None = None) -> Iterator[dict[str, int]]:
    """Every combination of numbers for the params that declare which are tried (`in [...]`) and are not set; the last
    param changes first. Empty if there are none and nothing is set. Raises PlanError for a default that is no number.
    """
    given = dict(settings or {})
    first = next((p for p in params(script, given) if p.domain and p.name not in given), None)
    if first is None:
        yield from [given] if given else []
        return
    for value in first.domain:
        yield from open_settings(script, given | {first.name: value})


def asked_settings(script: nodes.Script, asked: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Every combination of the numbers that a user asks for, with every one of those that the plan lists for its other
    params; the last param changes first. Where a list is wrong the setting stays as it is asked for: its compilation
    says why. Raises PlanError for a wrong list where nothing is asked for."""
    for row in product(*asked.values()):
        given = dict(zip(asked, row, strict=True))
        try:
            yield from open_settings(script, given)
        except PlanError:
            if not given:
                raise
            yield given


def declarations(script: nodes.Script) -> Declarations:
    """The summary, parameters and public functions of a script."""
    functions = tuple(
        f"{s.name.text}({', '.join(w.text for w in s.formals)})"
        for s in script.statements
        if isinstance(s, nodes.DefStatement) and not s.name.text.startswith("_")
    )
    is_plan = any(isinstance(node, nodes.MeshStatement) for node in nodes.walk(script))
    return Declarations(summary(script.span.source), is_plan, params(script), functions)


def never_used(script: nodes.Script) -> list[Diagnostic]:
    """A warning for each `param` and `dim` that no expression and no `split` names."""
    words = {*_words(script)}
    declared = ((s, s.keyword) for s in script.statements if isinstance(s, nodes.ParamStatement | nodes.DimStatement))
    return [NeverUsed(s.name.span, keyword, s.name.text) for s, keyword in declared if s.name.text not in words]


def _words(script: nodes.Script) -> Iterator[str]:
    """The names that a script reads: of values, and of dimensions."""
    for node in nodes.walk(script):
        match node:
            case (
                nodes.NameExpression(text)
                | nodes.SplitStatement(dim=nodes.Word(text))
                | nodes.Attribute(name=nodes.Word(text))
            ):
                yield text
            case _:
                pass
