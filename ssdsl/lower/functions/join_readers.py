"""Puts operators on weights alone into the tasks that read them, as the model itself would compute them.

A value computed from weights alone (a relative position bias, a weight in another dtype) has no batch, so a split by
batch does not reach it. Its operators would be a function of their own that runs once a step, and the results and their
gradients would be kept for the whole step. If all readers are in one function, the operators run in each task of that
function instead, are recomputed with it, and add their addend to the gradient of the weights.

Three kinds still run once a step: operators whose results backward keeps (a weight divided by its norm, a factor of a
product, what enters a recomputed part) and that are not recomputed, as one result a step is less than one for each task
in flight; operators that change a buffer or that a report reads; and operators with readers in several functions.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ssdsl.ir.function import Carried, OpSplit
from ssdsl.ir.layout import Shard
from ssdsl.ir.value import Time, TimeIndex
from ssdsl.lower.functions.kinds import kinds_of, levels_of
from ssdsl.lower.lowering import Kind, Lowering
from ssdsl.lower.operators.operand_types import place_in
from ssdsl.model.graph import Graph, Operand, Operator
from ssdsl.model.memory.saved import saved
from ssdsl.model.memory.saved_tensors import Saved

Joined = dict[str, tuple[TimeIndex, ...]]  # by operator, the indices in time of its readers that it has not itself
Readers = dict[str, list[tuple[Operator, Operand]]]  # of the results of an operator


def join_readers(lowering: Lowering) -> Lowering:
    """Adds `joined`, and its indices to `sunk`, as gradients stay addends along them; also `kinds` and `levels` of all
    operators, with the joined ones in their new functions."""
    able: Collection[str] = _able(lowering)
    readers, kinds = _readers(lowering) if able else {}, kinds_of(lowering)
    while True:
        joined, those = _of_one_kind(lowering, kinds, able, readers)
        found = replace(lowering, joined=joined, kinds=those)
        found = replace(found, levels=levels_of(found, those))
        able = _of_one_level(found, readers)
        if able == joined.keys():
            break
    sunk = {name: lowering.sunk.get(name, frozenset()) | {t.name for t in times} for name, times in joined.items()}
    return replace(found, sunk=lowering.sunk | sunk)


def _able(lowering: Lowering) -> frozenset[str]:
    """The operators that may run more than once a step: they read only weights, and leave only values that backward
    does not keep, or that are recomputed."""
    graph, alone = lowering.graph, lowering.graph.alone
    made = [o for o in graph.computing if all(v.value in alone for v in o.outputs)]
    if not made:
        return frozenset()
    recomputed = frozenset(n for n, record in lowering.plan.operators.items() if record.checkpoint is not None)
    kept = _kept(graph, alone, recomputed)
    once = {*graph.updates.values(), *graph.outputs.values(), graph.loss, *graph.running}
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
    known: dict[int, tuple[Operator, Saved]] = {}  # of equal calls
    beside = {o.name: o for v in fresh for o in (graph.makers[v], *graph.readers.get(v, ()))}
    for operator in beside.values():
        call = graph.signatures[operator.name]
        if call not in known:
            known[call] = operator, saved(operator, graph)
        like, found = known[call]
        tensors = found.renamed(like, operator)
        read = [o.value for o in operator.inputs] if operator.name in recomputed else tensors.inputs
        roots.update(places[v].root for v in (*read, *tensors.outputs))
    return frozenset(v for v in fresh if places[v].root in roots)


def _readers(lowering: Lowering) -> Readers:
    found: Readers = {operator.name: [] for operator in lowering.graph.computing}
    for operator in lowering.graph.computing:
        for number, source, _ in lowering.graph.sources[operator.name]:
            found[source.name].append((operator, operator.inputs[number]))
    return found


def _of_one_kind(
    lowering: Lowering, kinds: Mapping[str, Kind], able: Collection[str], readers: Readers
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
        if is_addend or isinstance(place_in(reader, split, operand), Shard):
            return False
    return True


def _of_one_level(lowering: Lowering, readers: Readers) -> set[str]:
    """The operators of `joined` that end up in one function with all their readers."""
    levels = lowering.levels
    return {n for n in lowering.joined if {levels[reader.name] for reader, _ in readers[n]} == {levels[n]}}
