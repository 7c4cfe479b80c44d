"""What a `split` cuts in this model, in a few words behind its line: `48 operators, parts of 3 (12)`."""

from collections import Counter
from collections.abc import Iterator

from ssdsl.assist.reading import DraftReading
from ssdsl.lang import nodes
from ssdsl.lang.suggest import counted
from ssdsl.record import Record

MOST_SIZES = 3


class Hint(Record):
    """Words behind a place of the text."""

    offset: int
    text: str


def hints(known: DraftReading, script: nodes.Script) -> Iterator[Hint]:
    """A hint for each `split` of operators, in the order of the text; `split` of state has none."""
    facts, model = known.context.facts, known.context.model
    cut: dict[int, Counter[tuple[int, int]]] = {}  # sizes and those of parts, by the place of the first cut
    for op in model.ordered(model.compute):
        parts: dict[int, tuple[int, int]] = {}
        for index in facts.of(op.name).indices:
            size = op.dims[index.dim].size
            first, left = parts.get(index.dim, (index.span.start, size))
            parts[index.dim] = first, left // index.devices
        for dim, (first, left) in parts.items():
            cut.setdefault(first, Counter())[op.dims[dim].size, left] += 1
    for s in (node for one in script.statements for node in nodes.walk(one)):
        if isinstance(s, nodes.SplitStatement) and (found := cut.get(s.cuts[0].span.start)):
            sizes = [f"{part} ({size})" for (size, part), _ in found.most_common(MOST_SIZES)]
            more = ", ..." if len(found) > MOST_SIZES else ""
            yield Hint(s.span.end, f"{counted(found.total(), 'operator')}, parts of {', '.join(sizes)}{more}")
