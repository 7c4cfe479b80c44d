"""Says in front of which section a function awaits weights that other devices have updated in the step before (ZeRO-1,
ZeRO-2, and ZeRO-3 whose optimizer's state is in finer parts than the weights).

It reads the flat parameters, and which sections read or gather their weights, and sets `Section.awaits`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter

from ssdsl.ir.function import Function, sections_that_gather
from ssdsl.ir.param import FlatParam
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Name
from ssdsl.lower.stages import Formed
from ssdsl.record import replace


def await_updates(lowering: Formed) -> Formed:
    """Adds to the sections of each function the flat parameters that arrive in front of them.

    Of two layers on two devices, with `split model.optimizer by row into dp`:

        -   section
        +   section awaits flat0
    """
    if not (lowering.trains and any(flat.sharded.updated for flat in lowering.flats)):
        return lowering
    return replace(lowering, functions=tuple(_awaiting(f, lowering.flats) for f in lowering.functions))


def _awaiting(function: Function, flats: Sequence[FlatParam]) -> Function:
    """The function, with the flat parameters that its sections await, in the order in which these are needed."""
    updated = [flat for flat in flats if flat.sharded.updated and flat.submesh == function.submesh]
    whole = _of_whole(function, [flat for flat in updated if not flat.sharded.weights])
    parts = _of_parts(function, flats, {flat.number for flat in updated if flat.sharded.weights})
    places = sorted((*whole, *parts), key=itemgetter(0))  # those of one place in the order in which they start
    awaits = [tuple(flat for at, flat in places if at.section == n) for n in range(len(function.sections))]
    sections = zip(function.sections, awaits, strict=True)
    return replace(function, sections=tuple(replace(s, awaits=numbers) if numbers else s for s, numbers in sections))


def _of_whole(function: Function, updated: Iterable[FlatParam]) -> Iterator[tuple[InstrPlace, int]]:
    """Yields flat parameters whose weights are whole between steps, each with the first place that reads one."""
    readers = function.uses.readers
    for flat in updated:
        if places := [readers[Name(weight)][0] for weight in flat.weights if Name(weight) in readers]:
            yield min(places), flat.number


def _of_parts(
    function: Function, flats: Sequence[FlatParam], updated: Collection[int]
) -> Iterator[tuple[InstrPlace, int]]:
    """Yields those flat parameters whose weights are in parts, each with the section in front of which the function
    first starts to gather them."""
    gathered = [flat for section in function.sections for flat in section.gathers]
    first = dict[int, int]()
    starts = sections_that_gather(function.sections, function.ahead, lambda number: flats[number].ahead)
    for number, section in zip(gathered, starts, strict=True):
        if number in updated:
            first[number] = min(section, first.get(number, section))
    yield from ((InstrPlace(section, -1), number) for number, section in first.items())
