"""Any field of a program, spoilt: a number, a name, a flag, or the length of a sequence."""

import random
from enum import Enum
from typing import Any

from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Program
from ssdsl.record import field_names, replace
from ssdsl.text.source import Span

FIELDS = ("functions", "prologues", "messages", "params", "flats", "roles", "losses", "results")


def spoil(program: Program, chance: random.Random) -> tuple[Program, str]:
    """The program with one field changed, and which."""
    while True:
        name = chance.choice([f for f in FIELDS if getattr(program, f)])
        changed, where = _changed(getattr(program, name), chance)
        if changed != getattr(program, name):
            return replace(program, **{name: changed}), name + where


def _changed(item: Any, chance: random.Random) -> tuple[Any, str]:
    match item:
        case bool():
            return not item, f": not {item}"
        case Enum():
            other = chance.choice(list(type(item)))
            return other, f": {other} for {item}"
        case int():
            other = chance.choice([item + 1, item - 1, 0, -1, 999])
            return other, f": {other} for {item}"
        case str():
            return "nothing", f": nothing for {item}"
        case Submesh():
            others = [(), *(((a, n + 1),) for a, n in item.fixed[:1])]
            fixed = chance.choice(others)
            return replace(item, fixed=fixed), f": {fixed} for {item}"
        case tuple() if hasattr(item, "_fields"):
            name = chance.choice(item._fields)
            part, where = _changed(getattr(item, name), chance)
            return item._replace(**{name: part}), f".{name}{where}"
        case tuple() if item and (_is_pair(item) or chance.random() < 0.85):
            at = chance.randrange(len(item))
            part, where = _changed(item[at], chance)
            return (*item[:at], part, *item[at + 1 :]), f"[{at}]{where}"
        case tuple():
            return chance.choice([(), item[:-1], (*item, *item[-1:])]), f": another length than {len(item)}"
        case _ if field_names(item) and not isinstance(item, Span):
            name = chance.choice(field_names(item))
            part, where = _changed(getattr(item, name), chance)
            return replace(item, **{name: part}), f".{name}{where}"  # type: ignore[type-var]
        case _:
            return item, ""


def _is_pair(item: tuple[Any, ...]) -> bool:
    """Whether a tuple has two items by its type: an axis and its coordinate, a start and an end."""
    return len(item) == 2 and type(item[1]) is int
