"""From the parser's tree to nodes: one function per grammar rule, in a table by the rule's name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lark import Token, Tree

from ssdsl.lang import nodes
from ssdsl.lang.errors import NothingSaid
from ssdsl.lang.layout import PREFIX, span_of
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


def build(source: Source, tree: Tree[Token]) -> nodes.Script:
    """The script that a parse tree spells."""
    statements = _Builder(source).all(tree)
    return nodes.Script(statements, span=Span(source, 0, len(source.text)))


@dataclass(frozen=True, slots=True)
class _Builder:
    source: Source

    def __call__(self, item: Any) -> Any:
        """The node of a tree, the word of a name; None for what is optional and absent."""
        if item is None:
            return None
        if isinstance(item, Token):
            return nodes.Word(str(item), span=span_of(self.source, item))
        return RULES[item.data](self, item, *item.children)

    def all(self, tree: Any) -> tuple[Any, ...]:
        return tuple(self(child) for child in tree.children if child is not None)

    def span(self, tree: Any) -> Span:
        start, end = tree.meta.start_pos - len(PREFIX), tree.meta.end_pos - len(PREFIX)
        return Span(self.source, start, min(end, len(self.source.text)))


def _text(token: Token | None) -> str | None:
    return None if token is None else token[1:-1]


def _same(node: type[Any]) -> Callable[..., Any]:
    """A rule whose children are the node's fields."""
    return lambda b, tree, *children: node(*map(b, children), span=b.span(tree))


def _param(b: _Builder, tree: Any, name: Token, default: Any, help_: Token | None) -> nodes.Param:
    return nodes.Param(b(name), b(default), _text(help_), span=b.span(tree))


def _use(b: _Builder, tree: Any, module: Token, *names: Token) -> nodes.Use:
    is_file = module.type == "STRING"
    found = nodes.Text(module[1:-1], span=span_of(b.source, module)) if is_file else b(module)
    return nodes.Use(found, tuple(map(b, names)), span=b.span(tree))


def _mesh(b: _Builder, tree: Any, name: Token, *axes: Any) -> nodes.Mesh:
    return nodes.Mesh(b(name), tuple(b(a) for a in axes if a is not None), span=b.span(tree))


def _require(b: _Builder, tree: Any, test: Any, why: Token | None) -> nodes.Require:
    return nodes.Require(b(test), _text(why), span=b.span(tree))


def _split(b: _Builder, tree: Any, operators: Any, dim: Any, *cuts: Any) -> nodes.Split:
    return nodes.Split(b(operators), b(dim), tuple(map(b, cuts)), span=b.span(tree))


def _order(b: _Builder, tree: Any, *steps: Any) -> nodes.Order:
    exprs = (s for s in steps if not isinstance(s, Token))
    return nodes.Order(tuple(map(b, exprs)), span=b.span(tree))


def _do(b: _Builder, tree: Any, call: Any) -> nodes.Do:
    node = b(call)
    if not isinstance(node, nodes.Call):
        raise PlanError(NothingSaid(b.span(tree)))
    return nodes.Do(node, span=b.span(tree))


def _suffixed(b: _Builder, tree: Any, statement: Any, where: Any) -> nodes.For:
    return nodes.For(b(where), (b(statement),), True, span=b.span(tree))


def _for(b: _Builder, tree: Any, where: Any, block: Any) -> nodes.For:
    return nodes.For(b(where), b(block), False, span=b.span(tree))


def _if(b: _Builder, tree: Any, *parts: Any) -> nodes.If:
    *pairs, other = parts
    tests = [
        nodes.Branch(b(t), b(body), span=b.span(t).to(b.span(body)))
        for t, body in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    return nodes.If(tuple(tests), b(other.children[0]) if other else (), span=b.span(tree))


def _clock(b: _Builder, tree: Any, by: Token, where: Any, *rows: Any) -> nodes.Clock:
    return nodes.Clock(b(by), b(where) or (), tuple(b(r) for r in rows if isinstance(r, Tree)), span=b.span(tree))


def _dim_name(b: _Builder, tree: Any, *parts: Token) -> nodes.Word:
    is_text = parts[0].type == "STRING"
    return nodes.Word(parts[0][1:-1] if is_text else ".".join(parts), span=b.span(tree))


def _binary(b: _Builder, tree: Any, left: Any, operator: Token, right: Any) -> nodes.Binary:
    return nodes.Binary(str(operator), b(left), b(right), span=b.span(tree))


def _unary(b: _Builder, tree: Any, operator: Token, operand: Any) -> nodes.Unary:
    return nodes.Unary(str(operator), b(operand), span=b.span(tree))


def _arguments(node: type[Any]) -> Callable[..., Any]:
    return lambda b, tree, first, *rest: node(b(first), tuple(b(r) for r in rest if r is not None), span=b.span(tree))


def _tuple(b: _Builder, tree: Any, *children: Any) -> tuple[Any, ...]:
    return b.all(tree)


RULES: dict[str, Callable[..., Any]] = {
    "param": _param,
    "mesh": _mesh,
    "let": _same(nodes.Let),
    "use": _use,
    "dim": _same(nodes.Dim),
    "return_": _same(nodes.Return),
    "split": _split,
    "assign": _same(nodes.Assign),
    "order": _order,
    "recompute": _same(nodes.Recompute),
    "require": _require,
    "do": _do,
    "suffixed": _suffixed,
    "for_": _for,
    "if_": _if,
    "def_": _same(nodes.Def),
    "clock": _clock,
    "at": _same(nodes.At),
    "block": _tuple,
    "where": _tuple,
    "binding": _same(nodes.Binding),
    "formals": _tuple,
    "dim_name": _dim_name,
    "cut": _same(nodes.Cut),
    "keyed": _same(nodes.Keyed),
    "conditional": _same(nodes.Conditional),
    "binary": _binary,
    "unary": _unary,
    "attribute": _same(nodes.Attribute),
    "call": _arguments(nodes.Call),
    "pick": _arguments(nodes.Pick),
    "name": lambda b, tree, token: nodes.Name(str(token), span=b.span(tree)),
    "number": lambda b, tree, token: nodes.Number(str(token), span=b.span(tree)),
    "text": lambda b, tree, token: nodes.Text(token[1:-1], span=b.span(tree)),
    "parentheses": lambda b, tree, inner: b(inner),
    "list": lambda b, tree, *items: nodes.ListOf(b.all(tree), span=b.span(tree)),
    "comprehension": _same(nodes.Comprehension),
}
