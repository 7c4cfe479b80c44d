"""Warns of params and dims that a plan declares and never reads."""

from collections.abc import Iterator

from ssdsl.lang import nodes
from ssdsl.plan.errors.names import NeverUsed
from ssdsl.text.diagnostic import Diagnostic


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
