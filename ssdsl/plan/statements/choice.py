"""Numbers that have a value in each turn of a loop: the branches of `either`, and params in loops."""

from collections.abc import Iterator
from contextlib import suppress

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.facts import Choice
from ssdsl.plan.values import Selection
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError


def number_of_turn(ctx: Context, name: str, choice: Choice) -> int:
    """The number that a choice has in the turn that begins: that of a search for it or for all turns, else its own. In
    a file that another one uses, it is always its own."""
    if ctx.stack.files:
        return choice.own
    turns = ctx.facts.choices.get(name, choice).turns
    around = (value.operators for value in ctx.scope.values.values() if isinstance(value, Selection))
    ctx.facts.choices[name] = replace(choice, turns=(*turns, next(around, frozenset())))
    return ctx.overrides.get(f"{name}@{len(turns)}", ctx.overrides.get(name, choice.own))


def say_what_turn_is_about(ctx: Context, name: str, body: tuple[nodes.Statement, ...]) -> None:
    """Notes for a turn of a loop over numbers which operators the statements of its body name."""
    choice = ctx.facts.choices.get(name)
    if choice is not None and choice.turns and not choice.turns[-1]:
        about = frozenset[str]().union(*_named(ctx, body))
        ctx.facts.choices[name] = replace(choice, turns=(*choice.turns[:-1], about))


def _named(ctx: Context, body: tuple[nodes.Statement, ...]) -> Iterator[frozenset[str]]:
    for node in (node for statement in body for node in nodes.walk(statement)):
        expression = getattr(node, "operators", None)
        if isinstance(node, nodes.Keyworded) and expression is not None:
            with suppress(PlanError):
                value = evaluate(ctx, expression)
                if isinstance(value, Selection):
                    yield value.operators
