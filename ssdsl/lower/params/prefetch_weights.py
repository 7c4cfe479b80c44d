"""Says in which order functions gather weights in parts (ZeRO-3), so that gathers can start before they are needed.

It reads sections with their gathers, and sets `Function.ahead`. `prefetch` of the plan says how far ahead each starts.
"""

from itertools import groupby

from ssdsl.ir.function import Backward, Function, GathersAhead
from ssdsl.lower.params.regathered import regathered
from ssdsl.lower.stages import Formed
from ssdsl.record import replace

Groups = tuple[tuple[int, ...], ...]


def prefetch_weights(lowering: Formed) -> Formed:
    """Sets the order of the gathers of each function that starts some ahead.

    Of two layers on two devices, with `split model.weights by row into dp`:

        +   ahead flat3, flat2, flat1, flat0; backward flat0, flat1, flat2
    """
    if not any(flat.sharded.weights and flat.ahead for flat in lowering.flats):
        return lowering
    return replace(lowering, functions=tuple(_ordered(lowering, function) for function in lowering.functions))


def _ordered(lowering: Formed, function: Function) -> Function:
    """The function with the order of its gathers. The halves of a backward read weights in orders of their own, and
    start nothing ahead."""
    forward = _groups(function, [(n, flat) for n, section in enumerate(function.sections) for flat in section.gathers])
    back: Groups = ()
    if forward and function.backward is Backward.WHOLE and lowering.trains:
        steps = regathered(function, lowering.flats, lowering.graph).steps
        back = _groups(function, [(step.at.section, step.gather[1]) for step in steps if not step.reduces])
    used = (groups if _starts_any(lowering, groups) else () for groups in (forward, back))
    return replace(function, ahead=GathersAhead(*used))


def _groups(function: Function, gathers: list[tuple[int, int]]) -> Groups:
    """The flat parameters that are gathered together: those of one section, by its number, if it is a layer or is
    recomputed. Other sections gather each for itself, where they first read it."""
    found: list[tuple[int, ...]] = []
    for number, those in groupby(gathers, lambda gather: gather[0]):
        section, flats = function.sections[number], tuple(flat for _, flat in those)
        found += [flats] if section.is_apart else [(flat,) for flat in flats]
    return tuple(found)


def _starts_any(lowering: Formed, groups: Groups) -> bool:
    """Whether one of these gathers starts ahead of its reader."""
    return any(lowering.flats[number].ahead for group in groups[1:] for number in group)
