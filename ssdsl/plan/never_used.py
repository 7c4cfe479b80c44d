"""Names that a plan declares for its user, or for its dimensions, and then reads nowhere."""

from collections.abc import Iterator
from dataclasses import fields

from ssdsl.lang import nodes
from ssdsl.plan.errors.names import NeverUsed
from ssdsl.text.diagnostic import Diagnostic


def never_used(script: nodes.Script) -> list[Diagnostic]:
    """A warning for each `param` and `dim` whose name no expression, and no `split`, has."""
    words = {*_words(script)}
    declared = ((s, s.keyword) for s in script.statements if isinstance(s, nodes.Param | nodes.Dim))
    return [NeverUsed(s.name.span, keyword, s.name.text) for s, keyword in declared if s.name.text not in words]


def _words(node: nodes.Node) -> Iterator[str]:
    """The names that a script reads: of values, and of dimensions."""
    match node:
        case nodes.Name(text) | nodes.Split(dim=nodes.Word(text)) | nodes.Attribute(name=nodes.Word(text)):
            yield text
        case _:
            pass
    for f in fields(node):
        child = getattr(node, f.name)
        for part in child if isinstance(child, tuple) else (child,):
            if isinstance(part, nodes.Node):
                yield from _words(part)
