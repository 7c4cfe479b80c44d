"""Kinds and levels: operators of one kind and one level share a function.

Operators are of one kind if they run on the same devices, have the same indices in time and belong to the same sets of
those that `order` names. The level counts the changes of kind on the way from the inputs, so that functions never wait
for each other in a cycle.
"""

from ssdsl.ir.function import Carried, OpSplit
from ssdsl.ir.layout import Shard
from ssdsl.ir.value import Time, TimeIndex
from ssdsl.lower.lowering import Kind, Lowering
from ssdsl.lower.operators.operand_types import operand_shape, place_in, waits_for_no_later
from ssdsl.model.graph import Operand, Operator


def kinds_of(lowering: Lowering) -> dict[str, Kind]:
    """The kind of each operator, before operators join their readers."""
    ordered = frozenset(tasks.number for tasks in lowering.plan.ordered())
    kinds: dict[str, Kind] = {}
    known: dict[tuple[int, int], Kind] = {}  # by identity of splits and record: operators share these objects
    same: dict[Kind, Kind] = {}  # so that equal kinds are one object, as equal submeshes are
    for o in lowering.graph.computing:
        splits, record = lowering.splits[o.name], lowering.plan.of(o.name)
        key = id(splits), id(record)
        if key not in known:
            time = tuple(sorted(_time(splits), key=lambda t: t.name))
            kind = lowering.submeshes[o.name], time, tuple(sorted(record.sets & ordered))
            known[key] = same.setdefault(kind, kind)
        kinds[o.name] = known[key]
    return kinds


def _time(splits: tuple[OpSplit, ...]) -> list[TimeIndex]:
    return [TimeIndex(s.coordinate.name, s.parts, s.sizes) for s in splits if isinstance(s.coordinate, Time)]


def levels_of(lowering: Lowering, kinds: dict[str, Kind]) -> dict[str, int]:
    """The level of each operator: as early as its inputs allow, then as late as its consumers allow, so that there are
    few functions."""
    operators, sources = lowering.graph.computing, lowering.graph.sources
    is_same, is_cut = _SameParts(lowering), _cut_apart(lowering)
    edges: dict[str, list[tuple[str, int]]] = {o.name: [] for o in operators}
    level: dict[str, int] = {}
    for op in operators:
        kind, own = kinds[op.name], 0
        for n, source, output in sources[op.name]:
            name = source.name
            apart = kinds[name] is not kind or (name, op.name) in is_cut or not is_same.part((source, output), (op, n))
            edges[name].append((op.name, int(apart)))
            own = max(own, level[name] + apart)
        level[op.name] = own
    for op in reversed(operators):  # a source moves down to its readers; `apart` is 1 where a function has to end
        if edges[op.name]:
            level[op.name] = min(level[user] - apart for user, apart in edges[op.name])
    return level


def _cut_apart(lowering: Lowering) -> set[tuple[str, str]]:
    """Pairs of a producer and an operator that has joined its readers. The producer computes in parts (in time) what
    the joined operator needs whole in each part, so they cannot share a function."""
    found = set[tuple[str, str]]()
    for name, joined in lowering.joined.items():
        times = {Time(t.name) for t in joined}
        makers = (source.name for _, source, _ in lowering.graph.sources[name])
        found.update((m, name) for m in makers if not times.isdisjoint(s.coordinate for s in lowering.splits[m]))
    return found


class _SameParts:
    """Asks `is_same_part` once for equal calls that share their splits."""

    def __init__(self, lowering: Lowering) -> None:
        self.splits, self.signatures = lowering.splits, lowering.graph.signatures
        self.known: dict[tuple[int, ...], bool] = {}

    def part(self, before: tuple[Operator, int], after: tuple[Operator, int]) -> bool:
        """`is_same_part` of an operator's result and another one's operand, each given by its number."""
        (source, output), (operator, n) = before, after
        made, read = self.splits[source.name], self.splits[operator.name]
        key = self.signatures[source.name], id(made), output, self.signatures[operator.name], id(read), n
        if key not in self.known:
            ends = (source, made, source.outputs[output]), (operator, read, operator.inputs[n])
            self.known[key] = is_same_part(*ends)
        return self.known[key]


Use = tuple[Operator, tuple[OpSplit, ...], Operand]  # an operator, its splits, and one of its operands or results


def is_same_part(before: Use, after: Use) -> bool:
    """Whether a part of the consumer reads only the producer's part at the same coordinates in time, or that one and
    the parts before it."""
    (source, splits, output), (operator, its, operand) = before, after
    made = {s.coordinate: place_in(source, s, output) for s in splits if isinstance(s.coordinate, Time)}
    read = {s.coordinate: s for s in its if isinstance(s.coordinate, Time)}
    for coordinate in made.keys() & read.keys():
        split = read[coordinate]
        carries = isinstance(split, Carried) and operand.value in split.operands
        part = place_in(operator, split, operand)
        follows = waits_for_no_later(made[coordinate], part, operand_shape(operator, operand))
        if not follows or (not isinstance(part, Shard) and not carries):
            return False
    return True
