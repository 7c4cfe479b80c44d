"""The gathers of weights in parts (ZeRO-3) in a task, and which of them it need not make because the weights have
stayed (`keep OPS.weights through m`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ssdsl.ir.function import Function
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Compute, DropWeights, KeepWeights, Program
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Name
from ssdsl.lower.params.regathered import GatherStep
from ssdsl.record import Record


class Staying(Record):
    """The flat parameters whose weights are there when a task begins, as earlier ones have gathered them, and those
    whose weights stay once this task has."""

    there: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()


NONE_STAY = Staying()
FlatsOf = Callable[[Compute], Iterable[int]]


def staying(program: Program, gathered_by: FlatsOf) -> Mapping[Compute, Staying]:
    """By task, the weights that stay, for the tasks with some; `gathered_by` gives the flat parameters that a task
    gathers if none stays."""
    found: dict[Compute, Staying] = {}
    for role in program.roles if any(flat.kept for flat in program.flats) else ():
        kept, there = set[int](), set[int]()
        for action in role.actions:
            match action:
                case KeepWeights():
                    kept.add(action.flat)
                case DropWeights():
                    kept.discard(action.flat)
                    there.discard(action.flat)
                case Compute() if kept:
                    own = kept.intersection(gathered_by(action))
                    if own:
                        found[action] = Staying(frozenset(own & there), frozenset(own - there))
                    there |= own
    return found


def gather_axes(
    steps: Iterable[GatherStep], flats: Sequence[FlatParam], stay: Staying
) -> Iterator[tuple[GatherStep, tuple[str, ...]]]:
    """Yields the steps of a task, each gather with the axes that it goes over: those over which weights stay in parts,
    none if they stay whole, or else those of their parts between steps."""
    there = {*stay.there}
    for step in steps:
        number = step.gather[1]
        kept = flats[number].kept if number in there else None
        if not step.reduces and number in stay.kept:
            there.add(number)
        yield step, flats[number].sharded.weights if kept is None else kept.axes


def forward_gathers(function: Function, flats: Sequence[FlatParam]) -> Iterator[GatherStep]:
    """Yields the gathers of a forward, each at the first instruction of its section that reads one of its weights."""
    readers = function.uses.readers
    for number, section in enumerate(function.sections):
        for flat in section.gathers:
            places = (at for w in flats[flat].weights for at in readers.get(Name(w), ()) if at.section == number)
            yield GatherStep(min(places, default=InstrPlace(number, 0)), (number, flat))
