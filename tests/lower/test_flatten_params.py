"""`flatten_params`: which weights are reduced together, how large buckets are, and how a gradient is completed."""

import re
from pathlib import Path

import pytest

from ssdsl.ir.comm import AllReduce, Narrow, ReduceScatter
from ssdsl.ir.layout import REPLICATE, Cut, Layout, Shape, Shard, Submesh
from ssdsl.ir.param import (
    Completion,
    CompletionStep,
    FlatParam,
    Param,
    StateAxes,
    SumTiedGrads,
)
from ssdsl.lower.errors import ShardConflict, StateApart
from ssdsl.lower.params.flatten_params import completion_of, flatten_params
from ssdsl.lower.params.place_params import check_shards
from ssdsl.lower.stages import Assembled, Held
from ssdsl.plan.plan import State, StatePlan
from ssdsl.plan.plan import StateShard as StateShard
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from tests.lower.by_hand import SPAN, graph_of, plan_of, staged, submesh

AXES = {"dp": 4, "tp": 2}
HERE = submesh(AXES)
GRAPH = graph_of("input x[batch]\nweight w[batch]\ny[batch] = mul x[batch] w[batch]\nloss[] = sum y[batch]", batch=8)
MIB = 1 << 20
DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


def param(
    name: str,
    size_bytes: int = 4096,
    partial: tuple[str, ...] = (),
    place: Submesh = HERE,
    *,
    is_trained: bool = True,
    dtype: str = "float32",
) -> Param:
    """A weight in one axis, replicated."""
    itemsize = 2 if dtype == "bfloat16" else 4
    layout = Layout((REPLICATE,) * len(place.axes))
    return Param(name, place, Shape(((size_bytes // itemsize,),)), layout, partial, is_trained, dtype)


def flats(*params: Param, shards: tuple[StateShard, ...] = ()) -> tuple[FlatParam, ...]:
    plan = replace(plan_of(GRAPH, AXES), state=StatePlan(shards=shards))
    return flatten_params(staged(Assembled, plan, params=params)).flats


def weights(*params: Param, shards: tuple[StateShard, ...] = ()) -> list[tuple[str, ...]]:
    return [flat.weights for flat in flats(*params, shards=shards)]


def shard(state: State, names: str, *axes: str) -> StateShard:
    return StateShard(state, frozenset(names.split()), axes, SPAN)


# -- which weights are together ----------------------------------------------------------------------------------------


def test_the_weights_of_last_layers_come_first() -> None:
    assert weights(param("a"), param("b"), param("c")) == [("c", "b", "a")]


def test_what_is_not_trained_is_in_no_flat_parameter() -> None:
    assert weights(param("a"), param("buffer", is_trained=False)) == [("a",)]


def test_weights_of_other_devices_dtypes_or_sums_are_apart() -> None:
    elsewhere = submesh({"pp": 2, "dp": 4}, pp=1)
    for other in (param("b", place=elsewhere), param("b", dtype="bfloat16"), param("b", partial=("dp",))):
        assert weights(param("a"), other) == [("b",), ("a",)]


def test_weights_whose_parts_differ_in_size_are_apart() -> None:
    """Behind them, copies of another weight would not lie at one address on all devices."""
    equal, unequal = Shard(0, Digit(2, 512)), Shard(0, Digit(2, at=(((0, 100),), ((100, 1024),))))
    for along_tp, expected in ((equal, [("c", "b", "a")]), (unequal, [("c", "a"), ("b",)])):
        cut = replace(param("b"), layout=Layout((REPLICATE, along_tp)))
        assert weights(param("a"), cut, param("c")) == expected


def test_a_program_that_does_not_train_keeps_the_flat_parameters_that_it_was_given() -> None:
    held = Held(flats=flats(param("a")))
    lowering = staged(Assembled, plan_of(GRAPH, AXES), held=held, trains=False, params=(param("b"),))
    assert flatten_params(lowering).flats == held.flats


def test_one_that_trains_them_too_completes_their_gradients_as_its_own_cuts_need() -> None:
    held = Held(flats=(*flats(param("a", partial=("dp",))), *flats(param("b", partial=("dp",)))))
    params = param("a", partial=("tp",)), param("b", partial=("tp",))
    found = flatten_params(staged(Assembled, plan_of(GRAPH, AXES), held=held, params=params)).flats
    assert found == tuple(
        replace(flat, completion=Completion(once=(AllReduce(("tp",), flat.elements),))) for flat in held.flats
    )


# -- buckets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "partial", "wanted"),
    [
        ([12 * MIB] * 6, (), [3, 3]),  # not reduced: 25 MB, and the weight that fills them
        ([2 * MIB] * 8, ("dp",), [2, 2, 2, 2]),  # a quarter of 16 MB
        ([MIB] * 8, ("dp",), [2, 2, 2, 2]),  # a quarter, which is 0.5 MB for each of 4 ranks
        ([MIB] * 8, ("dp", "tp"), [4, 4]),  # 0.5 MB for each of 8 ranks
        ([MIB // 4] * 8, ("dp",), [8]),
        ([8 * MIB] * 16, ("dp",), [4, 4, 4, 4]),  # 25 MB, and the one that fills them
        ([MIB, 64 * MIB, MIB], ("dp",), [2, 1]),  # small ones share a bucket with a large one
    ],
)
def test_buckets_are_as_many_and_as_large_as_the_page_says(
    sizes: list[int], partial: tuple[str, ...], wanted: list[int]
) -> None:
    found = weights(*(param(f"w{n}", size, partial) for n, size in enumerate(sizes)))
    assert [*map(len, found)] == wanted


def test_a_bucket_counts_the_bytes_of_its_dtype() -> None:
    halves = [param(f"w{n}", MIB // 4, ("dp",), dtype="bfloat16") for n in range(8)]
    assert [*map(len, weights(*halves))] == [8]  # 2 MB; of four bytes each they would be 4 MB, in two buckets


def test_a_bucket_counts_what_a_device_has_of_a_weight() -> None:
    cut = [
        replace(param(f"w{n}", 2 * MIB, ("dp",)), layout=Layout((REPLICATE, Shard(0, Digit(2, MIB // 4)))))
        for n in range(8)
    ]
    found = flats(*cut)
    assert [len(f.weights) for f in found] == [2, 2, 2, 2] and found[0].elements == 2 * MIB // 4


# -- completion --------------------------------------------------------------------------------------------------------


def rows() -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """The table of completions of docs/design.md: sums, axes of state, and what is done."""
    lines = DESIGN.read_text("utf-8").splitlines()
    first = lines.index("| sum over | state sharded over | completion |") + 2
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[first : first + 4]]
    return [(tuple(re.findall(r"\w+", sums)), tuple(re.findall(r"\w+", state)), said) for sums, state, said in cells]


def said(step: CompletionStep) -> str:
    match step:
        case AllReduce(axes):
            return f"all_reduce over {', '.join(axes)}"
        case ReduceScatter(axes):
            return f"reduce_scatter over {', '.join(axes)}"
        case Narrow(axes):
            return f"each device keeps its part over {', '.join(axes)}"
        case SumTiedGrads():
            return "tied"


@pytest.mark.parametrize(("sums", "state", "wanted"), rows(), ids=lambda cell: str(cell)[:30])
def test_each_row_of_the_table_of_completions_holds(sums: tuple[str, ...], state: tuple[str, ...], wanted: str) -> None:
    steps = [
        said(step)
        for step in completion_of(sums, StateAxes(optimizer=state), 64, dict.fromkeys((*sums, *state), 2)).steps
    ]
    words = [
        re.sub(r" of the shard|^then |, along which it is equal$", "", part)
        for part in re.split(r", (?!along)", wanted)
    ]
    assert steps == words


def test_copies_on_several_submeshes_are_summed_last() -> None:
    stages = tuple(submesh({"pp": 2, "dp": 4}, pp=stage) for stage in (0, 1))
    found = flats(
        *(param("w", partial=("dp",), place=stage) for stage in stages), param("a", partial=("dp",), place=stages[0])
    )
    tied = [f for f in found if f.weights == ("w",)]
    assert [f.completion.once for f in tied] == [(AllReduce(("dp",), 1024), SumTiedGrads(stages))] * 2
    assert [f.completion.once for f in found if f not in tied] == [(AllReduce(("dp",), 1024),)]


# -- sharded state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "sharded", "when"),
    [
        ((State.OPTIMIZER,), StateAxes((), (), ("dp",)), "once"),
        ((State.GRADS,), StateAxes((), ("dp",), ("dp",)), "each"),
        ((State.OPTIMIZER, State.GRADS), StateAxes((), ("dp",), ("dp",)), "each"),
        ((State.OPTIMIZER, State.GRADS, State.WEIGHTS), StateAxes(("dp",), ("dp",), ("dp",)), "in_backward"),
    ],
)
def test_a_state_is_cut_with_the_one_from_which_it_is_computed(
    states: tuple[State, ...], sharded: StateAxes, when: str
) -> None:
    (flat,) = flats(param("a", partial=("dp",)), shards=tuple(shard(state, "a", "dp") for state in states))
    assert (flat.sharded, flat.completion) == (
        sharded,
        Completion(**{when: (ReduceScatter(("dp",), 1024, Cut(0, 1, 4)),)}),
    )


def test_a_state_may_be_cut_further_than_the_one_from_which_it_is_computed() -> None:
    finer = shard(State.WEIGHTS, "a", "tp"), shard(State.OPTIMIZER, "a", "dp", "tp")
    (flat,) = flats(param("a", partial=("dp", "tp")), shards=finer)
    assert flat.sharded == StateAxes(("tp",), ("tp",), ("tp", "dp"))
    assert flat.completion == Completion(
        (ReduceScatter(("tp",), 1024, Cut(0, 1, 2)),), (), (ReduceScatter(("dp",), 512, Cut(0, 1, 4)),)
    )


def test_a_flat_parameter_is_padded_to_equal_shards() -> None:
    (flat,) = flats(param("a", 4 * 9), shards=(shard(State.OPTIMIZER, "a", "dp"),))
    assert flat.elements == 12


def test_unequal_parts_are_in_proportion_to_the_portions() -> None:
    """Of 36 elements, padded to 40, devices along dp have 3, 3, 2 and 2 tenths, those along tp a quarter and three."""
    said = replace(shard(State.GRADS, "a", "dp", "tp"), portions=(("dp", (3, 3, 2, 2)), ("tp", (1, 3))))
    (flat,) = flats(param("a", 4 * 36, partial=("dp",)), shards=(said,))
    assert (flat.elements, flat.elements_over(("dp",)), flat.elements_over(("dp", "tp"))) == (40, 12, 9)
    assert flat.elements_over(("dp", "tp"), {"dp": 2, "tp": 0}) == 2
    borders = ((0, 12),), ((12, 24),), ((24, 32),), ((32, 40),)
    cut = ReduceScatter(("dp",), 4 * 12, Cut(0, 1, 4, borders))
    assert flat.completion.each == (cut, Narrow(("tp",), 12, Cut(0, 1, 2, (((0, 3),), ((3, 12),)))))


def test_the_weights_of_a_module_are_gathered_together() -> None:
    params = [param(f"h.{n}.{name}", partial=("dp",)) for n in (0, 1) for name in ("up", "down")]
    whole = shard(State.WEIGHTS, "h.0.up h.0.down h.1.up h.1.down", "dp")
    assert weights(*params, shards=(whole,)) == [("h.1.down", "h.1.up"), ("h.0.down", "h.0.up")]


def test_a_tied_weight_of_unlike_devices_keeps_its_state_whole() -> None:
    unlike = (submesh(AXES), Submesh(replace(HERE.mesh, name="other", axes=(("dp", 2),), first=8)))
    found = flats(*(param("w", place=place) for place in unlike), shards=(shard(State.OPTIMIZER, "w", "dp"),))
    assert [f.sharded for f in found] == [StateAxes(), StateAxes()]


def test_state_that_no_axis_copies_is_refused() -> None:
    cut = replace(param("a"), layout=Layout((Shard(0, Digit(4, 256)), REPLICATE)))
    with pytest.raises(PlanError) as caught:
        check_shards((shard(State.OPTIMIZER, "a", "dp"),), [cut])
    assert [type(d) for d in caught.value.diagnostics] == [ShardConflict]


def test_a_state_that_leaves_out_an_axis_of_the_one_before_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        flats(param("a"), shards=(shard(State.OPTIMIZER, "a", "dp"), shard(State.GRADS, "a", "tp")))
    assert [type(d) for d in caught.value.diagnostics] == [StateApart]
