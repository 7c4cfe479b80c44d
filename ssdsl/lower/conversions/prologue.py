"""Forms the prologues: on each submesh, constants run once, and operators that depend on inputs only once per step.

Inputs enter as parts: where all readers of an input on a device cut it alike, the device is given that part alone. So
do constants that are computed: a device computes all of one when it starts, and keeps its part. All asks for a value
are known before it is provided, because operators are visited from the last one to the first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ssdsl.ir.function import Conversion, OpPart, Prologue, Split
from ssdsl.ir.layout import REPLICATE, Layout, Placement, Shape, Shard, Submesh
from ssdsl.ir.value import Name, Type, Var, local_sizes
from ssdsl.lower.conversions.even import check_path
from ssdsl.lower.conversions.reshard import reshard
from ssdsl.lower.operators.kernels import first_of, kernel_of
from ssdsl.lower.operators.operand_types import operand_types
from ssdsl.lower.operators.shard_operators import data_splits
from ssdsl.lower.stages import Answered, Provided, grown
from ssdsl.model.graph import Operator, Origin, Stage
from ssdsl.record import Record

When = tuple[int, ...]  # position in the order of the program: an operator, an operand, then what that need leads to
Part = frozenset[tuple[str, Shard]]  # the digits of a device's part, each with the axis of the mesh that fixes it


class _Ask(Record):
    """A layout in which a value is needed on a submesh, and the place of the need in the order of the program."""

    when: When
    submesh: Submesh
    layout: Layout


class _Call(Record):
    """A data operator on a submesh, with the layouts of what it reads."""

    operator: Operator
    splits: tuple[Split, ...]
    reads: tuple[Layout, ...]


@dataclass(slots=True)
class _Draft:
    """The prologue of one submesh under construction; everything in it has its position in the order of the program."""

    constants: list[tuple[When, Operator]] = field(default_factory=list)
    given: list[tuple[When, Var]] = field(default_factory=list)
    body: list[tuple[When, _Call | Conversion]] = field(default_factory=list)
    results: list[tuple[When, Name]] = field(default_factory=list)


def form_prologues(lowering: Answered) -> Provided:
    """Adds the prologues, and `provided`: the names under which they provide what functions ask for."""
    return _Forming(lowering).formed()


class _Forming:
    def __init__(self, lowering: Answered) -> None:
        self.lowering, self.graph = lowering, lowering.graph
        self.asks: dict[str, list[_Ask]] = {}
        self.made: dict[tuple[str, Submesh], tuple[When, Type]] = {}  # as data operators leave values
        self.names: dict[tuple[str, Submesh, Layout], Name] = {}
        self.drafts: dict[Submesh, _Draft] = {}

    def formed(self) -> Provided:
        for value, ask in self._asked():
            self.asks.setdefault(value, []).append(ask)
            self.drafts.setdefault(ask.submesh, _Draft())
        wanted = [(value, ask) for value, asks in self.asks.items() for ask in asks]
        for operator in reversed(self.graph.operators):
            if operator.stage is Stage.DATA:
                self._call(operator)
        for value, asks in self.asks.items():
            self._provide(value, asks)
        for value, ask in wanted:
            self.drafts[ask.submesh].results.append((ask.when, self.names[value, ask.submesh, ask.layout]))
        prologues = tuple(self._prologue(submesh, draft) for submesh, draft in self.drafts.items())
        return grown(self.lowering, Provided, prologues=prologues, provided=self.names)

    def _asked(self) -> Iterator[tuple[str, _Ask]]:
        """The values that functions read and no function makes, weights and buffers aside, each with its ask."""
        makers = self.lowering.makers
        for ask in (a for asks in self.lowering.asks.values() for a in asks if a.value not in makers):
            provided = self.graph.values[ask.value].origin not in (Origin.WEIGHT, Origin.BUFFER)
            if provided and ask.need is not None:
                submesh = self.lowering.segments[ask.function].submesh
                yield ask.value, _Ask(ask.at, submesh, ask.need.type.layout)

    # -- operators on data -------------------------------------------------------------------------------------------

    def _call(self, operator: Operator) -> None:
        """Adds an operator on each submesh that asks for a result, in front of the first ask."""
        first: dict[Submesh, When] = {}
        for output in operator.outputs:
            for ask in self.asks.get(output.value, ()):
                first[ask.submesh] = min(ask.when, first.get(ask.submesh, ask.when))
        for submesh, when in first.items():
            splits = data_splits(operator, self.lowering.plan.of(operator.name).indices, submesh, self.graph.windowed)
            layouts = []
            for n, operand in enumerate(operator.inputs):
                need, _ = operand_types(operator, splits, operand, submesh.axes, is_output=False)
                self.asks.setdefault(operand.value, []).append(_Ask((*when, 0, n), submesh, need.layout))
                layouts.append(need.layout)
            for output in operator.outputs:
                made, _ = operand_types(operator, splits, output, submesh.axes, is_output=True)
                self.made[output.value, submesh] = (*when, 1), made
                self.asks.setdefault(output.value, [])  # it has a name even if nothing reads it
            self.drafts[submesh].body.append(((*when, 1), _Call(operator, splits, tuple(layouts))))

    # -- values ------------------------------------------------------------------------------------------------------

    def _provide(self, value: str, asks: list[_Ask]) -> None:
        """Names a value in each layout that is asked for, and adds conversions to layouts in which it is neither given
        nor made."""
        versions: dict[str, dict[tuple[tuple[str, Placement], ...], int]] = {}

        def name(submesh: Submesh, layout: Layout) -> Name:
            """The name of the value in a layout: the same for all submeshes of a mesh, as a device may run several
            prologues."""
            known = versions.setdefault(submesh.mesh.name, {})
            places = zip(submesh.axes, layout.places, strict=True)
            cut = tuple((axis, place) for (axis, _), place in places if place is not REPLICATE)
            return Name(value, known.setdefault(cut, len(known)))

        given = self._given(value, asks)
        held: dict[Submesh, Var] = {}
        left = [_Ask(when, s, type_.layout) for (v, s), (when, type_) in self.made.items() if v == value]
        for ask in sorted([*asks, *left], key=lambda ask: ask.when):
            submesh, draft = ask.submesh, self.drafts[ask.submesh]
            if submesh not in held:
                _, made = self.made.get((value, submesh), (None, None))
                first = name(submesh, made.layout if made else _whole(submesh))
                held[submesh] = self._var(first, submesh, made or Type(given[submesh]))
                self.names[value, submesh, held[submesh].type.layout] = first
                if made is None:
                    draft.given.append((ask.when, held[submesh]))
                    draft.constants += [(ask.when, operator) for operator in self._constants(value)]
            own = name(submesh, ask.layout)
            if (value, submesh, ask.layout) not in self.names:
                self.names[value, submesh, ask.layout] = own
                draft.body.append(((*ask.when, 2), self._converted(held[submesh], own, submesh, ask.layout)))

    def _var(self, name: Name, submesh: Submesh, type_: Type) -> Var:
        value = self.graph.values[name.value]
        return Var(name, type_, None, local_sizes(Shape(value.sizes), type_, submesh.axes), value.dtype)

    def _converted(self, held: Var, name: Name, submesh: Submesh, layout: Layout) -> Conversion:
        value, links = self.graph.values[name.value], self.lowering.links(submesh)
        shape = Shape(value.sizes)
        check_path(self.lowering.plan, shape, held.type.layout, layout)
        steps = reshard(held.type.layout, layout, shape, submesh.axes, value.itemsize, links)
        return Conversion(held.name, self._var(name, submesh, Type(layout)), steps)

    def _constants(self, value: str) -> Iterator[Operator]:
        """The operators that compute a constant, in the order in which they run."""
        if (operator := self.graph.makers.get(value)) is not None:
            for ref in operator.refs():
                yield from self._constants(ref)
            yield operator

    def _given(self, value: str, asks: list[_Ask]) -> dict[Submesh, Layout]:
        """By submesh, the layout in which its prologue gets a value: an input, or a constant with memory of its own,
        cut by the digits that its readers have in common on all submeshes that share devices, directly or through
        others; any other value whole."""
        layouts: dict[Submesh, list[Layout]] = {}
        for ask in asks:
            layouts.setdefault(ask.submesh, []).append(ask.layout)
        origin = self.graph.values[value].origin
        is_own = origin is Origin.OPERATOR and self.graph.storages[value].root == value
        if not is_own and origin is not Origin.INPUT:
            return {submesh: _whole(submesh) for submesh in layouts}
        return {
            submesh: Layout(tuple(common.get(axis, REPLICATE) for axis, _ in submesh.axes))
            for group in _sharing(layouts)
            for common in (dict(_common(_part(layout, s) for s in group for layout in layouts[s])),)
            for submesh in group
        }

    # -- one prologue ------------------------------------------------------------------------------------------------

    def _prologue(self, submesh: Submesh, draft: _Draft) -> Prologue:
        body = (self._op(submesh, made) if isinstance(made, _Call) else made for made in _in_order(draft.body))
        constants = dict.fromkeys(operator.name for operator in _in_order(draft.constants))
        results = dict.fromkeys(_in_order(draft.results))
        return Prologue(submesh, tuple(constants), tuple(_in_order(draft.given)), tuple(body), tuple(results))

    def _op(self, submesh: Submesh, call: _Call) -> OpPart:
        operator, splits = call.operator, call.splits
        reads = (self.names[o.value, submesh, layout] for o, layout in zip(operator.inputs, call.reads, strict=True))
        results = []
        for operand in operator.outputs:
            _, type_ = self.made[operand.value, submesh]
            results.append(self._var(self.names[operand.value, submesh, type_.layout], submesh, type_))
        kernel, first = kernel_of(operator, splits, submesh.axes), first_of(operator, splits)
        return OpPart(operator.name, splits, tuple(reads), tuple(results), kernel, first, orders=operator.orders)


T = TypeVar("T")


def _in_order(placed: Iterable[tuple[When, T]]) -> list[T]:
    return [thing for _, thing in sorted(placed, key=lambda each: each[0])]


def _whole(submesh: Submesh) -> Layout:
    return Layout((REPLICATE,) * len(submesh.axes))


def _part(layout: Layout, submesh: Submesh) -> Part:
    places = zip(submesh.axes, layout.places, strict=True)
    return Part((axis, place) for (axis, _), place in places if isinstance(place, Shard))


def _common(parts: Iterable[Part]) -> Part:
    first, *others = parts
    return first.intersection(*others)


def _sharing(submeshes: Iterable[Submesh]) -> list[list[Submesh]]:
    """Groups of submeshes that are connected by devices: each shares a device with another one of its group."""
    groups: list[list[Submesh]] = []
    for submesh in submeshes:
        joined = [g for g in groups if any(_meet(submesh, other) for other in g)]
        groups = [g for g in groups if g not in joined] + [[*(s for g in joined for s in g), submesh]]
    return groups


def _meet(a: Submesh, b: Submesh) -> bool:
    """Whether two submeshes share devices."""
    here = dict(a.fixed)
    return a.mesh == b.mesh and all(here.get(axis, at) == at for axis, at in b.fixed)
