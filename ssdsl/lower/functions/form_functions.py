"""Groups operators into segments, which become functions: all operators of one kind at one level.

Operators are of one kind if they run on the same devices, have the same indices in time and belong to the same sets of
those that `order` names. The level counts the changes of kind on the way from the inputs, so that functions never wait
for each other in a cycle.

`join_readers` first puts operators on weights alone into the tasks that read them, as the model itself would compute
them. A value computed from weights alone (a relative position bias, a weight in another dtype) has no batch, so a split
by batch does not reach it. Its operators would be a function of their own that runs once a step, and the results and
their gradients would be kept for the whole step. If all readers are in one function, the operators run in each task of
that function instead, are recomputed with it, and add their addend to the gradient of the weights.

Three kinds still run once a step: operators whose results backward keeps (a weight divided by its norm, a factor of a
product, what enters a recomputed part) and that are not recomputed, as one result a step is less than one for each task
in flight; operators that change a buffer or that a report reads; and operators with readers in several functions.
"""

from collections.abc import Collection, Hashable, Mapping

from ssdsl.ir.function import Carried, OpSplit
from ssdsl.ir.layout import Shard, Submesh
from ssdsl.ir.value import Time, TimeIndex
from ssdsl.lower.operators.operand_types import operand_shape, place_in, waits_for_no_later
from ssdsl.lower.stages import Grouped, Kind, Segment, Segmented, Sunk, TypedGraph, grown
from ssdsl.model.graph import Graph, Operand, Operator
from ssdsl.model.memory.saved import saved
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.plan.plan import HALVES, Mark, PartRun, Phase, Plan

# -- operators on weights alone ----------------------------------------------------------------------------------------


Joined = dict[str, tuple[TimeIndex, ...]]  # by operator, the indices in time of its readers that it has not itself
Readers = dict[str, list[tuple[Operator, Operand]]]  # of the results of an operator, each at least once


def join_readers(lowering: Sunk) -> Grouped:
    """Adds `joined`, and its indices to `sunk`, as gradients stay addends along them; also `kinds` and `levels` of all
    operators, with the joined ones in their new functions."""
    able: Collection[str] = _able(lowering)
    readers, kinds = _readers(lowering.graph, able), kinds_of(lowering)
    while True:
        joined, those = _of_one_kind(lowering, kinds, able, readers)
        levels = levels_of(lowering, those, joined)
        able = _of_one_level(joined, levels, readers)
        if able == joined.keys():
            break
    sunk = {name: lowering.sunk.get(name, frozenset()) | {t.name for t in times} for name, times in joined.items()}
    return grown(lowering, Grouped, sunk=lowering.sunk | sunk, joined=joined, kinds=those, levels=levels)


def _able(lowering: Sunk) -> frozenset[str]:
    """The operators that may run more than once a step: they read only weights, and leave only values that backward
    does not keep, or that are recomputed."""
    graph, alone = lowering.graph, lowering.graph.alone
    made = [o for o in graph.computing if all(v.value in alone for v in o.outputs)]
    if not made:
        return frozenset()
    recomputed = frozenset(n for n, record in lowering.plan.operators.items() if record.is_recomputed)
    kept = _kept(graph, alone, recomputed)
    once = graph.results | graph.running
    return frozenset(
        o.name
        for o in made
        if once.isdisjoint(v.value for v in (*o.inputs, *o.outputs))
        and (o.name in recomputed or kept.isdisjoint(v.value for v in o.outputs))
    )


def _kept(graph: Graph, alone: frozenset[str], recomputed: frozenset[str]) -> frozenset[str]:
    """The values made from weights whose memory backward keeps: autograd saves it, or a recomputed operator reads it.
    Views of weights themselves are not among them: the weights are there anyway."""
    places = graph.storages
    made = alone & graph.makers.keys()
    fresh = {v for v in made if places[v].root in made}
    roots = set[str]()
    known: dict[int, Saved] = {}  # of equal calls
    beside = {o.name: o for v in fresh for o in (graph.makers[v], *graph.readers.get(v, ()))}
    for operator in beside.values():
        call = graph.signatures[operator.name]
        if call not in known:
            known[call] = saved(operator, graph)
        read = [o.value for o in operator.inputs] if operator.name in recomputed else []
        roots.update(places[v].root for v in (*read, *known[call].values(operator)))
    return frozenset(v for v in fresh if places[v].root in roots)


def _readers(graph: Graph, operators: Collection[str]) -> Readers:
    made = {o.value: (name, graph.readers.get(o.value, ())) for name in operators for o in graph.by_name[name].outputs}
    found: Readers = {name: [] for name in operators}
    for value, (name, readers) in made.items():
        found[name] += ((reader, operand) for reader in readers for operand in reader.inputs if operand.value == value)
    return found


def _of_one_kind(
    lowering: Sunk, kinds: Mapping[str, Kind], able: Collection[str], readers: Readers
) -> tuple[Joined, dict[str, Kind]]:
    """The operators whose readers are all of one kind and read their results whole in each part, with the indices in
    time that they get; and the kinds of all operators after that."""
    kinds, joined = dict(kinds), Joined()
    if not able:
        return joined, kinds
    for operator in reversed(lowering.graph.computing):
        if operator.name not in able:
            continue
        those = {kinds[reader.name] for reader, _ in readers[operator.name]}
        if len(those) != 1:
            continue
        kind, own = those.pop(), kinds[operator.name]
        submesh, time, ordered = kind
        left = tuple(t for t in time if t not in own[1])
        if (submesh, ordered) != (own[0], own[2]) or not left or not {*own[1]} <= {*time}:
            continue
        along = {Time(t.name) for t in left}
        if all(_reads_all(reader, lowering.splits[reader.name], o, along) for reader, o in readers[operator.name]):
            joined[operator.name] = left
            kinds[operator.name] = kind
    return joined, kinds


def _reads_all(reader: Operator, splits: tuple[OpSplit, ...], operand: Operand, along: set[Time]) -> bool:
    """Whether each part of a reader along some indices reads the whole value, and not as the addend of a sum."""
    for split in (s for s in splits if s.coordinate in along):
        is_addend = isinstance(split, Carried) and operand.value in split.operands
        if is_addend or isinstance(place_in(reader, split, splits, operand), Shard):
            return False
    return True


def _of_one_level(joined: Joined, levels: Mapping[str, int], readers: Readers) -> set[str]:
    """The operators of `joined` that end up in one function with all their readers."""
    return {n for n in joined if {levels[reader.name] for reader, _ in readers[n]} == {levels[n]}}


# -- kinds and levels --------------------------------------------------------------------------------------------------


def kinds_of(lowering: Sunk) -> dict[str, Kind]:
    """The kind of each operator, before operators join their readers."""
    ordered = frozenset(tasks.number for tasks in lowering.plan.ordered())
    kinds: dict[str, Kind] = {}
    known: dict[tuple[tuple[OpSplit, ...], frozenset[int], tuple[PartRun | Mark | None, ...], Submesh], Kind] = {}
    same: dict[Kind, Kind] = {}  # so that equal kinds are one object, as equal submeshes are
    for o in lowering.graph.computing:
        record, submesh = lowering.plan.of(o.name), lowering.submeshes[o.name]
        splits, sets = lowering.splits[o.name], record.sets
        parts = (*record.parts, record.within)
        key = splits, sets, parts, submesh
        if key not in known:
            time = tuple(sorted(_time(splits), key=lambda t: t.name))
            kind = submesh, time, (*sorted(sets & ordered), *parts)
            known[key] = same.setdefault(kind, kind)
        kinds[o.name] = known[key]
    return kinds


def _time(splits: tuple[OpSplit, ...]) -> list[TimeIndex]:
    digits = ((s.coordinate.name, s.digit) for s in splits if isinstance(s.coordinate, Time))
    return [TimeIndex(name, digit.parts, digit.sizes) for name, digit in digits]


def levels_of(lowering: Sunk, kinds: dict[str, Kind], joined: Joined) -> dict[str, int]:
    """The level of each operator: as early as its inputs allow, then as late as its consumers allow, so that there are
    few functions."""
    operators, sources = lowering.graph.computing, lowering.graph.sources
    is_same, is_cut = _SameParts(lowering), _cut_apart(lowering, joined)
    edges: dict[str, list[tuple[str, int]]] = {o.name: [] for o in operators}
    level: dict[str, int] = {}
    for op in operators:
        kind, own = kinds[op.name], 0
        for n, source, output in sources[op.name]:
            name = source.name
            apart = kinds[name] is not kind or not is_same.part(source, output, op, n)
            apart = apart or (name, op.name) in is_cut
            edges[name].append((op.name, int(apart)))
            own = max(own, level[name] + apart)
        level[op.name] = own
    for op in reversed(operators):  # a source moves down to its readers; `apart` is 1 where a function has to end
        if edges[op.name]:
            level[op.name] = min(level[user] - apart for user, apart in edges[op.name])
    return level


def _cut_apart(lowering: Sunk, all_joined: Joined) -> set[tuple[str, str]]:
    """Pairs of a producer and an operator that has joined its readers. The producer computes in parts (in time) what
    the joined operator needs whole in each part, so they cannot share a function."""
    found = set[tuple[str, str]]()
    for name, joined in all_joined.items():
        times = {Time(t.name) for t in joined}
        makers = (source.name for _, source, _ in lowering.graph.sources[name])
        found.update((m, name) for m in makers if not times.isdisjoint(s.coordinate for s in lowering.splits[m]))
    return found


class _SameParts:
    """Asks `is_same_part` once for equal calls that share their splits."""

    def __init__(self, lowering: Sunk) -> None:
        self.splits, self.signatures = lowering.splits, lowering.graph.signatures
        self.known: dict[Hashable, bool] = {}

    def part(self, source: Operator, output: int, operator: Operator, n: int) -> bool:
        """`is_same_part` of result number `output` of an operator and operand number `n` of another one."""
        made, read = self.splits[source.name], self.splits[operator.name]
        addend = tuple([operator.inputs[n].value in s.operands for s in read if isinstance(s, Carried)])
        key = self.signatures[source.name], made, output, self.signatures[operator.name], read, n, addend
        if key not in self.known:
            ends = (source, made, source.outputs[output]), (operator, read, operator.inputs[n])
            self.known[key] = is_same_part(*ends)
        return self.known[key]


Use = tuple[Operator, tuple[OpSplit, ...], Operand]  # an operator, its splits, and one of its operands or results


def is_same_part(before: Use, after: Use) -> bool:
    """Whether a part of the consumer reads only the producer's part at the same coordinates in time, or that one and
    the parts before it."""
    (source, splits, output), (operator, its, operand) = before, after
    made = {s.coordinate: place_in(source, s, splits, output) for s in splits if isinstance(s.coordinate, Time)}
    read = {s.coordinate: s for s in its if isinstance(s.coordinate, Time)}
    for coordinate in made.keys() & read.keys():
        split = read[coordinate]
        carries = isinstance(split, Carried) and operand.value in split.operands
        part = place_in(operator, split, its, operand)
        follows = waits_for_no_later(made[coordinate], part, operand_shape(operator, operand))
        if not follows or (not isinstance(part, Shard) and not carries):
            return False
    return True


# -- segments ----------------------------------------------------------------------------------------------------------


def form_functions(lowering: TypedGraph) -> Segmented:
    """Adds the segments, in an order in which they can run, and by value the number of the one that makes it.

    Of two stages in two micro-batches:

        + segment 0 on gpus[pp = 0] over (m: 2) stage 0
        +   layers.0.0: linear (linear) on gpus[pp = 0] over (batch: m)
        ...
        + segment 1 on gpus[pp = 1] over (m: 2) stage 1
    """
    kinds, levels = lowering.kinds, lowering.levels
    groups: dict[tuple[int, Kind], list[Operator]] = {}
    for o in lowering.graph.computing:
        groups.setdefault((levels[o.name], kinds[o.name]), []).append(o)
    first = {key: position for position, key in enumerate(groups)}
    stages = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
    halves = {tasks.number for tasks in lowering.plan.ordered() if tasks.phase in HALVES}

    def in_halves(operator: Operator) -> bool:
        return not halves.isdisjoint(lowering.plan.of(operator.name).sets)

    repeated = _Repeated(lowering.plan)
    segments = tuple(
        Segment(kind[0], kind[1], tuple(inside), in_halves(inside[0]), stages[kind], repeated.number(inside[0]))
        for level, kind in sorted(groups, key=lambda group: (group[0], first[group]))
        for inside in (groups[level, kind],)
    )
    makers = {o.value: number for number, s in enumerate(segments) for op in s.operators for o in op.outputs}
    return grown(lowering, Segmented, segments=segments, makers=makers)


class _Repeated:
    """Numbers what runs again in tasks of its own: regions around other checkpoints, and sets of recomputed operators
    of which an `order` places the second forward."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.numbers = plan, dict[Hashable, int]()
        self.named = frozenset(tasks.number for tasks in plan.ordered() if tasks.phase is Phase.AGAIN)

    def number(self, operator: Operator) -> int | None:
        """The number of that to which an operator belongs; None if it runs once, or again within a backward."""
        record = self.plan.of(operator.name)
        region = record.within or min(record.sets & self.named, default=None)
        return None if region is None else self.numbers.setdefault(region, len(self.numbers))
