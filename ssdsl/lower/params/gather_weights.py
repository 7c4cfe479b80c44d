"""Says which flat parameters each section gathers before it and drops after it, if their weights are sharded (ZeRO-3).

It reads flat parameters and the functions' sections, and sets `Section.gathers`.
"""

from ssdsl.ir.function import Function, Section, reads_of
from ssdsl.lower.stages import Formed
from ssdsl.record import replace


def gather_weights(lowering: Formed) -> Formed:
    """Adds to each section the flat parameters that it gathers.

    Of two layers on two devices, with `split model.weights by row into dp`:

        -   section
        +   section gathers flat3, flat2, flat1, flat0
    """
    numbers = {(w, f.submesh): f.number for f in lowering.flats if f.sharded.weights for w in f.weights}
    if not numbers:
        return lowering
    return replace(
        lowering,
        functions=tuple(
            _gathering(f, {w: number for (w, submesh), number in numbers.items() if submesh == f.submesh})
            for f in lowering.functions
        ),
    )


def _gathering(function: Function, gathered: dict[str, int]) -> Function:
    """The function, each section with the flat parameters that it gathers; `gathered` has the one of each sharded
    weight. A section of a layer, or a recomputed one, gathers for itself. Of the others, the first that reads a flat
    parameter gathers it."""
    held: set[int] = set()
    sections = []
    for section in function.sections:
        apart = section.is_apart
        numbers = dict.fromkeys(gathered[w] for w in weights_of(section, function) if w in gathered)
        sections.append(replace(section, gathers=tuple(n for n in numbers if apart or n not in held)))
        if not apart:
            held.update(numbers)
    return replace(function, sections=tuple(sections))


def weights_of(section: Section, function: Function) -> tuple[str, ...]:
    """The weights that a section of a function reads, each once, in the order in which it does."""
    weights = {p.var.name: p.var.name.value for p in function.parameters}
    reads = (r for i in section.body for r in reads_of(i))
    return tuple(dict.fromkeys(weights[name] for name in reads if name in weights))
