"""Which operators could share a function: those of one kind, and at one level.

Of one kind are those that run on the same devices, have the same indices in time and are in the same sets that `order`
names. The level is the number of changes of kind on the way from the inputs, so that functions never wait for each
other in a cycle.
"""

from ssdsl.ir.function import Carried, OpSplit
from ssdsl.ir.layout import Shard
from ssdsl.ir.value import Time, TimeIndex
from ssdsl.lower.lowering import Kind, Lowering
from ssdsl.lower.operators.operand_types import operand_shape, place_in, waits_for_no_later
from ssdsl.model.graph import Operand, Operator, Stage


def computing(lowering: Lowering) -> list[Operator]:
    """The operators that functions have, in the order of the model."""
    return [o for o in lowering.graph.operators if o.stage is Stage.COMPUTE]


def kinds_of(lowering: Lowering) -> dict[str, Kind]:
    """The kind of each operator."""
    ordered = frozenset(tasks.number for tasks in lowering.plan.ordered())
    kinds: dict[str, Kind] = {}
    known: dict[tuple[int, int, tuple[TimeIndex, ...]], Kind] = {}  # of one record and splits, which operators share
    same: dict[Kind, Kind] = {}  # so that equal kinds are one object, as equal submeshes are
    for o in computing(lowering):
        splits, record = lowering.splits[o.name], lowering.plan.of(o.name)
        key = id(splits), id(record), lowering.joined.get(o.name, ())
        if key not in known:
            time = tuple(sorted((*_time(splits), *key[2]), key=lambda t: t.name))
            kind = lowering.submeshes[o.name], time, tuple(sorted(record.sets & ordered))
            known[key] = same.setdefault(kind, kind)
        kinds[o.name] = known[key]
    return kinds


def _time(splits: tuple[OpSplit, ...]) -> list[TimeIndex]:
    return [TimeIndex(s.coordinate.name, s.parts, s.sizes) for s in splits if isinstance(s.coordinate, Time)]


def levels_of(lowering: Lowering, kinds: dict[str, Kind]) -> dict[str, int]:
    """Level of each operator: as early as its inputs allow, then as late as its consumers allow, to leave few
    functions."""
    operators, splits = computing(lowering), lowering.splits
    producer = {o.value: (op, n) for op in operators for n, o in enumerate(op.outputs)}
    is_same = _SameParts(lowering)
    edges: dict[str, list[tuple[str, int]]] = {o.name: [] for o in operators}
    level: dict[str, int] = {}
    for op in operators:
        level[op.name] = 0
        for n, operand in enumerate(op.inputs):
            if operand.value in producer:
                source, output = producer[operand.value]
                apart = (
                    kinds[source.name] is not kinds[op.name]
                    or _is_cut(splits[source.name], lowering.joined.get(op.name, ()))
                    or not is_same.part((source, output), (op, n))
                )
                edges[source.name].append((op.name, int(apart)))
                level[op.name] = max(level[op.name], level[source.name] + apart)
    for op in reversed(operators):
        if edges[op.name]:
            level[op.name] = min(level[user] - apart for user, apart in edges[op.name])
    return level


def _is_cut(splits: tuple[OpSplit, ...], joined: tuple[TimeIndex, ...]) -> bool:
    """Whether an operator computes in parts what one that has joined its readers needs all of in each of these."""
    return bool(joined) and not {s.coordinate for s in splits}.isdisjoint(Time(t.name) for t in joined)


class _SameParts:
    """Asks `is_same_part` once for equal calls that share their splits."""

    def __init__(self, lowering: Lowering) -> None:
        self.splits, self.signatures = lowering.splits, lowering.graph.signatures
        self.known: dict[tuple[int, ...], bool] = {}

    def part(self, before: tuple[Operator, int], after: tuple[Operator, int]) -> bool:
        """Of a result, by its number, and an operand that reads it."""
        (source, output), (operator, n) = before, after
        made, read = self.splits[source.name], self.splits[operator.name]
        key = self.signatures[source.name], id(made), output, self.signatures[operator.name], id(read), n
        if key not in self.known:
            ends = (source, made, source.outputs[output]), (operator, read, operator.inputs[n])
            self.known[key] = is_same_part(*ends)
        return self.known[key]


Use = tuple[Operator, tuple[OpSplit, ...], Operand]  # a value of an operator that has these splits


def is_same_part(before: Use, after: Use) -> bool:
    """Whether a part of the consumer reads just the producer's part with the same indices in time, or that and what was
    made for the parts before it."""
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
