"""One value, however it is made and whatever is needed of it: each need is met by a version of just that type.

The graph is written by hand: a value of 8 x 8 numbers, on two devices along `tp` and in two parts along `m`.
"""

import itertools

import pytest

from ssdsl.ir.comm import AllGather, AllReduce, KeepFirst, Narrow
from ssdsl.ir.function import Conversion
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Placement, Shape, Shard, Submesh
from ssdsl.ir.param import Param
from ssdsl.ir.value import TimeIndex, Type, Var, local_sizes
from ssdsl.lower.asks import Entering, Need, Received, ValueVersions
from ssdsl.lower.conversions.convert import Source, convert
from ssdsl.lower.stages import Placed, Segment, TypedOperand
from ssdsl.model.graph import Graph, Origin, Value
from ssdsl.plan.plan import Mesh, Plan
from ssdsl.plan.regions import Digit
from tests.lower.by_hand import staged

SHAPE = Shape(((8,), (8,)))
VALUE = Value("x", Origin.OPERATOR, (8, 8), "float32", True, ((0,), (1,)), ((8,), (8,)))
MESH = Mesh("gpus", (("pp", 2), ("tp", 2)), 0)
HERE, THERE = (Submesh(MESH, (("pp", stage),)) for stage in (0, 1))
M = TimeIndex("m", 2)
BATCH, ROWS, COLUMNS = Shard(0, Digit(2, 4)), Shard(0, Digit(2, 4)), Shard(1, Digit(2, 4))  # of m, and of tp
INSIDE = Shard(0, Digit(2, 2))  # rows of a part of the batch
PLACES: tuple[Placement, ...] = (REPLICATE, PARTIAL, ROWS, COLUMNS)
Parts = tuple[tuple[tuple[str, Shard], ...], tuple[str, ...]]  # along `m`: digits, and sums that are owed
PART: Parts = ((("m", BATCH),), ())
ADDEND: Parts = ((), ("m",))
WHOLE: Parts = ((), ())
WITHIN = [(WHOLE, WHOLE), (WHOLE, PART), (WHOLE, ADDEND), (PART, PART), (ADDEND, ADDEND)]


def lowering() -> Placed:
    graph = Graph("by hand", (), {"x": VALUE}, "x", {}, {})
    return staged(Placed, Plan(graph, (MESH,), {}, {}), learning=frozenset({"x"}))


def type_of(place: Placement, parts: Parts) -> Type:
    digits, owed = parts
    return Type(Layout((INSIDE if digits and place is ROWS else place,)), digits, owed)


def made(type_: Type) -> TypedOperand:
    whole = Layout(tuple(REPLICATE if p is PARTIAL else p for p in type_.layout.places))
    return TypedOperand(SHAPE, type_, Type(whole, type_.time), local_sizes(SHAPE, type_, HERE.axes))


def need(type_: Type) -> Need:
    """As an operator asks that goes on with what it reads: its gradient is of the same parts, and whole for a sum."""
    (place,) = type_.layout.places
    return Need(SHAPE, type_, Type(Layout((REPLICATE if place is PARTIAL else place,)), type_.time))


def segment(submesh: Submesh, *time: TimeIndex) -> Segment:
    return Segment(submesh, time, (), False, 0)


def asked(source: Source, segments: list[Segment], *asks: tuple[int, Type]) -> ValueVersions:
    answer = convert(lowering(), VALUE, source, segments, [(function, need(type_)) for function, type_ in asks])
    assert answer.refusal is None
    return answer


def reached(answer: ValueVersions, function: int, version: int) -> Var | None:
    """The version, after a look at all that it is made of; None for what the operator leaves."""
    if (function, version) not in answer.made:
        assert (function, version) == (0, 0)
        return None
    match answer.made[function, version]:
        case Entering(var):
            return var
        case Received() as received:
            reached(answer, received.producer, received.left.version)
            return received.var
        case conversion:
            reached(answer, function, conversion.source.version)
            return conversion.result


def kinds(answer: ValueVersions) -> list[type]:
    """The kind of each version; of one that a step in time makes, that of the step."""
    steps = ((what, what.forward if isinstance(what, Conversion) else ()) for what in answer.made.values())
    return [next((type(s) for s in own if s.in_time), type(what)) for what, own in steps]


@pytest.mark.parametrize(("have", "want"), [*itertools.product(PLACES, PLACES)])
@pytest.mark.parametrize(("before", "after"), WITHIN)
def test_in_one_function(have: Placement, want: Placement, before: Parts, after: Parts) -> None:
    source, wanted = type_of(have, before), type_of(want, after)
    answer = asked(made(source), [segment(HERE, M)], (0, wanted))
    var = reached(answer, 0, answer.versions[0])
    if var is None:
        assert source == wanted and not answer.made
        return
    assert var.type == wanted and var.gradient is not None
    assert (var.gradient.layout, var.gradient.time) == (need(wanted).gradient.layout, wanted.time)  # type: ignore[union-attr]
    assert (Narrow in kinds(answer)) == (before != after and after == PART)
    assert (KeepFirst in kinds(answer)) == (before != after and after == ADDEND)
    assert kinds(answer).count(Conversion) <= 1


@pytest.mark.parametrize(("have", "want"), [*itertools.product(PLACES, PLACES)])
@pytest.mark.parametrize("submesh", [HERE, THERE], ids=["here", "there"])
@pytest.mark.parametrize("before", [PART, ADDEND], ids=["part", "addend"])
@pytest.mark.parametrize("turns", [(), (M,)], ids=["once", "in turn"])
def test_in_another_function(
    have: Placement, want: Placement, submesh: Submesh, before: Parts, turns: tuple[TimeIndex, ...]
) -> None:
    wanted = type_of(want, before if turns else WHOLE)
    answer = asked(made(type_of(have, before)), [segment(HERE, M), segment(submesh, *turns)], (1, wanted))
    var = reached(answer, 1, answer.versions[0])
    assert var is not None and var.type == wanted
    (received,) = (what for what in answer.made.values() if isinstance(what, Received))
    assert [type(m) for m in received.merges] == ([] if turns else [AllGather if before is PART else AllReduce])
    assert (received.sent is None) == (submesh == HERE)
    if received.sent is not None:  # what travels is no sum, and its gradient comes back
        assert PARTIAL not in received.var.type.layout.places and received.sent.backward is not None


def test_equal_needs_have_one_conversion() -> None:
    rows, columns = type_of(ROWS, WHOLE), type_of(COLUMNS, WHOLE)
    answer = asked(made(type_of(PARTIAL, WHOLE)), [segment(HERE)], (0, rows), (0, columns), (0, rows))
    assert answer.versions == [1, 2, 1] and kinds(answer) == [Conversion, Conversion]


def test_the_first_reader_of_other_devices_decides_how_it_travels() -> None:
    rows, whole = type_of(ROWS, WHOLE), type_of(REPLICATE, WHOLE)
    answer = asked(made(whole), [segment(HERE), segment(THERE)], (1, rows), (1, whole))
    sent = [what for what in answer.made.values() if isinstance(what, Received)]
    assert [what.var.type for what in sent] == [rows] and answer.versions == [0, 1]


def test_a_weight_enters_as_it_lies() -> None:
    param = Param("x", HERE, SHAPE, Layout((ROWS,)), (), True, "float32")
    answer = asked(param, [segment(HERE, M)], (0, type_of(ROWS, WHOLE)), (0, type_of(REPLICATE, WHOLE)))
    assert kinds(answer) == [Entering, Conversion] and answer.versions == [0, 1]
    entering = answer.made[0, 0]
    assert not isinstance(entering, Conversion) and entering.var.gradient is not None
    assert entering.var.gradient.owed == ("m",)  # each part adds to it


def test_what_the_prologue_provides_comes_as_it_is_needed() -> None:
    answer = asked(None, [segment(HERE, M)], (0, type_of(COLUMNS, PART)), (0, type_of(COLUMNS, WHOLE)))
    assert kinds(answer) == [Entering, Narrow] and answer.versions == [1, 0]
