"""The text of an expression, with the parentheses it needs and no others."""

import re

from ssdsl.lang import nodes
from ssdsl.lang.parser.indentation import KEYWORDS

BINDING = {"or": 1, "and": 2, "not": 3, "..": 5, "+": 6, "|": 6, "-": 6, "*": 7, "//": 7, "%": 7, "&": 7}
COMPARE, MINUS, POST, ATOM = 4, 8, 9, 10
PLAIN = re.compile(r"[A-Za-z_]\w*(\.([A-Za-z_]\w*|[0-9]+|\*))*", re.ASCII)  # a name without quotes


def spell(e: nodes.Expr, least: int = 0) -> str:
    """The text of an expression, in parentheses if it binds less tightly than `least`."""
    strength, text = _spell(e)
    return text if strength >= least else f"({text})"


def _spell(e: nodes.Expr) -> tuple[int, str]:
    """The binding strength of an expression, and its text."""
    match e:
        case nodes.NameExpression(text) | nodes.Number(text):
            return ATOM, text
        case nodes.Text(value):
            return ATOM, f'"{value}"'
        case nodes.ListOf(items):
            return ATOM, f"[{', '.join(map(spell, items))}]"
        case nodes.Comprehension(item, bindings):
            loops = ", ".join(f"{b.name.text} in {spell(b.values)}" for b in bindings)
            return ATOM, f"[{spell(item)} for {loops}]"
        case nodes.Attribute(target, name):
            return POST, f"{spell(target, POST)}.{name.text}"
        case nodes.Call(function, arguments):
            return POST, f"{spell(function, POST)}({_arguments(arguments)})"
        case nodes.Pick(target, keys):
            return POST, f"{spell(target, POST)}[{_arguments(keys)}]"
        case nodes.Unary(operator, operand):
            strength = MINUS if operator == "-" else BINDING["not"]
            return strength, f"{operator}{' ' if operator == 'not' else ''}{spell(operand, strength)}"
        case nodes.Binary(operator, left, right):
            return _binary(operator, left, right)
        case nodes.Conditional(then, test, other):
            return 0, f"{spell(then, 1)} if {spell(test, 1)} else {spell(other)}"


def _binary(operator: str, left: nodes.Expr, right: nodes.Expr) -> tuple[int, str]:
    """Operators group from the left; comparisons and ranges do not group."""
    strength = BINDING.get(operator, COMPARE)
    left_least = strength + 1 if strength in (COMPARE, BINDING[".."]) else strength
    if operator == "..":
        return strength, f"{_tight(left, left_least)}..{_tight(right, strength + 1)}"
    return strength, f"{spell(left, left_least)} {operator} {spell(right, strength + 1)}"


def _tight(e: nodes.Expr, least: int) -> str:
    """An end of a range: written without spaces if it is simple (`0..S-1`, not `0..S - 1`)."""
    match e:
        case nodes.Binary(
            "+" | "-", nodes.NameExpression(_) | nodes.Number(_), nodes.NameExpression(_) | nodes.Number(_)
        ):
            return spell(e, least).replace(" ", "")
    return spell(e, least)


def _arguments(arguments: tuple[nodes.Expr | nodes.Keyed, ...]) -> str:
    return ", ".join(f"{a.name.text} = {spell(a.value)}" if isinstance(a, nodes.Keyed) else spell(a) for a in arguments)


def spell_dim(name: str) -> str:
    """The name of a dimension as `split` takes it: in quotes if it has other characters than the path of a module."""
    is_plain = PLAIN.fullmatch(name) and name.split(".")[0] not in KEYWORDS
    return name if is_plain else f'"{name}"'
