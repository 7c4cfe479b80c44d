"""Finds the needs of each value, and meets them all: in the function that makes it, in others, and on other devices.

The conversions of a value follow from how it is made and from its needs in their order. So they are found once for all
values for which these are the same: both stand in a key as numbers.
"""

from collections.abc import Hashable, Iterator, Sequence

from ssdsl.ir.layout import REPLICATE, Layout, Shard
from ssdsl.ir.param import Param
from ssdsl.ir.place import place_of
from ssdsl.ir.rows import counts_of, slots_of
from ssdsl.ir.value import Name, Type, Var
from ssdsl.lower.asks import Ask, Converted, Need, ValueVersions
from ssdsl.lower.conversions.versions import ReadsBetween, Within
from ssdsl.lower.stages import Answered, Needed, Placed, Segment, Stored, TypedOperand, TypedOperator, grown
from ssdsl.model.graph import Operator, Value
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

# -- needs -------------------------------------------------------------------------------------------------------------


def find_needs(lowering: Stored) -> Needed:
    """Adds `asks`: by operator, those for its operands and then for its results that are written to buffers; and
    `reported`: those for the outputs that are asked for by name."""
    found: dict[str, tuple[Ask, ...]] = {}
    known: dict[tuple[int, bool], tuple[tuple[Need, Hashable], ...]] = {}  # of the operands of a typed call
    homes = {(p.weight, p.submesh): p for p in lowering.params}
    updates = {value: buffer for buffer, value in lowering.graph.updates.items()}
    for position, (number, operator) in enumerate(in_order(lowering.segments)):
        typed, submesh = lowering.typed[operator.name], lowering.segments[number].submesh
        learns = not lowering.learning.isdisjoint([o.value for o in operator.outputs])
        if (needs := known.get(call := (typed.number, learns))) is None:
            needs = known[call] = tuple(_needs_of(typed, learns))
        asks = [
            Ask(operand.value, number, need, key, (position, n))
            for n, (operand, (need, key)) in enumerate(zip(operator.inputs, needs, strict=True))
        ]
        for operand, left in zip(operator.outputs, typed.results, strict=True) if updates else ():
            if (buffer := updates.get(operand.value)) is not None:
                home = homes.get((buffer, submesh))
                layout = home and home.layout.refactored(home.shape, left.shape)
                layout = layout or Layout((REPLICATE,) * len(submesh.axes))
                need = Need(left.shape, replace(left.type, layout=layout), None)
                asks.append(Ask(operand.value, number, need, need, (position, len(asks))))
        found[operator.name] = tuple(asks)
    last, outputs = (len(found), 0), lowering.graph.outputs
    reported = {name: Ask(v, lowering.makers[v], None, None, last) for name, v in outputs.items()}
    return grown(lowering, Needed, asks=found, reported=reported)


def _needs_of(typed: TypedOperator, learns: bool) -> Iterator[tuple[Need, Hashable]]:
    """The needs of a call's operands, each with its key."""
    for n, read in enumerate(typed.reads):
        yield Need(read.shape, read.type, read.gradient if learns else None), (typed.number, n, learns)


def in_order(segments: tuple[Segment, ...]) -> Iterator[tuple[int, Operator]]:
    """The operators in the order of the program, each with the number of its function."""
    return ((number, operator) for number, segment in enumerate(segments) for operator in segment.operators)


Source = TypedOperand | Param | None  # an operator's result, a weight, or a prologue value that exists in any layout
Needs = Sequence[tuple[int, Need | None]]  # by function, in the order of the program

# -- one value ---------------------------------------------------------------------------------------------------------


def convert(lowering: Placed, value: Value, source: Source, segments: Sequence[Segment], asked: Needs) -> ValueVersions:
    """The answer for a value that functions on these segments need; if an operator makes it, then in the first segment.

    The answer has a refusal where unequal parts leave a needed digit without one fixed place. It does not depend on the
    value's name.
    """
    answer = ValueVersions()
    within = [
        Within(lowering, value, segment, n, answer, [need for f, need in asked if f == n and need is not None])
        for n, segment in enumerate(segments)
    ]
    between = None
    if isinstance(source, TypedOperand):
        between = ReadsBetween(within[0], within[0].version(source.shape, source.type, source.gradient))
    for function, need in asked:
        there = within[function]
        try:
            if need is not None:
                var = there.converted(_beginning(source, between, there, need), need)
            else:
                assert between is not None and isinstance(source, TypedOperand)
                var = there.completed(between.made, source.shape)
        except PlanError as error:
            answer.refusal = error
            break
        answer.versions.append(var.name.version)
    return answer


def _beginning(source: Source, between: ReadsBetween | None, there: Within, need: Need) -> Var:
    """The version that a function has before it converts it for a need."""
    if between is not None:
        return between.made if there is between.home else between.entering(there, need)
    if isinstance(source, Param):
        times = tuple(t.name for t in there.segment.time)
        return there.given(need.shape, source.layout, Type(source.gradient, (), times))
    return there.given(need.shape, need.type.layout, None)


# -- all values --------------------------------------------------------------------------------------------------------


def convert_values(lowering: Needed) -> Answered:
    """Adds `converted`. Raises PlanError for the first need in the order of the program that cannot be met."""
    return grown(lowering, Answered, converted=_Values(lowering).converted())


class _Values:
    """The values of a plan, and the answers for those that have been converted so far."""

    def __init__(self, lowering: Needed) -> None:
        self.lowering, self.graph = lowering, lowering.graph
        numbers: dict[Hashable, int] = {}
        places = [(s.submesh.axes, lowering.links(s.submesh)) for s in lowering.segments]
        self.kinds = [
            numbers.setdefault((*place, s.time), len(numbers))
            for place, s in zip(places, lowering.segments, strict=True)
        ]
        self.makers = {
            operand.value: (number, lowering.typed[operator.name], n)
            for number, operator in in_order(lowering.segments)
            for n, operand in enumerate(operator.outputs)
        }
        self.params = {(p.weight, p.submesh): p for p in lowering.params}
        self.asks: dict[str, list[Ask]] = {}
        self.known: dict[Hashable, ValueVersions] = {}
        self.refused: list[tuple[Ask, PlanError]] = []
        self.found = Converted()
        self.rows = {v.name for v in self.graph.values.values() if slots_of(v) is not None}

    def converted(self) -> Converted:
        for ask in (*(a for asks in self.lowering.asks.values() for a in asks), *self.lowering.reported.values()):
            self.asks.setdefault(ask.value, []).append(ask)
        # rows first: converting them adds asks for their counts
        for name in sorted(self.asks, key=self.rows.__contains__, reverse=True):
            for functions, own in self._apart(name, self.asks[name]):
                self._meet(name, functions, own)
        if self.refused:
            raise min(self.refused, key=lambda refused: refused[0].at)[1]
        return self.found

    def _apart(self, name: str, asks: list[Ask]) -> Iterator[tuple[tuple[int, ...], list[Ask]]]:
        """Groups of functions, with their asks, that get one answer. A value that an operator makes has one answer for
        all functions; a value that enters (a weight, or from the prologue) has one for each."""
        functions = dict.fromkeys([ask.function for ask in asks])
        if name in self.makers:
            home = self.makers[name][0]
            yield (home, *[f for f in functions if f != home]), asks
        elif len(functions) == 1:
            yield tuple(functions), asks
        else:
            yield from (((f,), [ask for ask in asks if ask.function == f]) for f in functions)

    def _meet(self, name: str, functions: tuple[int, ...], asks: list[Ask]) -> None:
        source, number = self._source(name, functions[0])
        key: Hashable
        if len(functions) == 1:
            numbers = [0] * len(asks)
            key = number, self.kinds[functions[0]], tuple([a.key for a in asks])
        else:
            local = {function: n for n, function in enumerate(functions)}
            numbers = [local[a.function] for a in asks]
            apart = [self.lowering.segments[f].submesh for f in functions]
            place = place_of(self.lowering.cluster, *apart) if len({*apart}) > 1 else ()
            where = tuple([self.kinds[f] for f in functions]), place
            key = number, where, tuple(numbers), tuple([a.key for a in asks])
        if (answer := self.known.get(key)) is None:
            segments = [self.lowering.segments[f] for f in functions]
            asked = list(zip(numbers, [a.need for a in asks], strict=True))
            answer = self.known[key] = convert(self.lowering, self.graph.values[name], source, segments, asked)
        for f in functions if answer.made else ():
            self.found.answers[name, f] = answer, functions
        for ask, version in zip(asks, answer.versions, strict=False):
            self.found.names[ask] = Name(name, version)
        for (function, version), (n, *types) in answer.moves_rows.items():
            self._ask_for_counts(self.graph.values[name], functions[function], version, asks[n], types)
        if answer.refusal is not None:
            self.refused.append((asks[len(answer.versions)], answer.refusal))

    def _source(self, name: str, function: int) -> tuple[Source, Hashable]:
        """The source of a value, and a key for it. Sources with equal keys are interchangeable: for an operator's
        result its number also fixes the dtype and whether it has a gradient."""
        if name in self.makers:
            _, typed, n = self.makers[name]
            return typed.results[n], (typed.number, n, name in self.rows)
        param = self.params.get((name, self.lowering.segments[function].submesh))
        value = self.graph.values[name].dtype, name in self.lowering.learning, name in self.rows
        return param, (None if param is None else (param.layout, param.partial), *value)

    def _ask_for_counts(self, rows: Value, function: int, version: int, ask: Ask, types: list[Type]) -> None:
        """Adds two asks for the number of rows: as they lie before they move, and after."""
        cls = slots_of(rows)
        assert cls is not None
        counted = counts_of(self.graph)[cls]
        _, typed, n = self.makers[counted]
        shape = typed.results[n].shape
        needs = [Need(shape, _of_counts(type_, len(shape.factors)), None) for type_ in types]
        before, after = (Ask(counted, function, need, need, ask.at) for need in needs)
        self.asks[counted] = sorted([*self.asks.get(counted, ()), before, after], key=lambda a: a.at)
        self.found.counts[function, Name(rows.name, version)] = before, after


def _of_counts(rows: Type, factors: int) -> Type:
    """The type of the counts of rows: the rows' own, without the digits of factors that counts do not have. They have
    the first `factors` factors of the rows."""
    places = (p if isinstance(p, Shard) and p.factor < factors else REPLICATE for p in rows.layout.places)
    return Type(Layout(tuple(places)), tuple((index, digit) for index, digit in rows.time if digit.factor < factors))
