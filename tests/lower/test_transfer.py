"""Values between stages: pieces are cut, sent and put in place by the runtime, on real numbers, forward and back."""

import itertools
import json
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from ssdsl.codegen.table import _move, _submesh
from ssdsl.ir.comm import Move
from ssdsl.ir.layout import REPLICATE, Layout, Shape, Shard, Submesh
from ssdsl.lower.conversions.transfer import keep_boxes, plan_move
from ssdsl.plan.plan import Mesh
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from ssdsl.runtime.layout import mesh
from ssdsl.runtime.program.codec import decoded, to_json
from ssdsl.runtime.program.table import TransferEntry
from ssdsl.runtime.ranks import transfers
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step import rank_setup

SHAPES = {
    "2-D": (Shape(((12,), (3, 12, 2))), (0, 2)),
    "3-D": (Shape(((12,), (2, 12), (12, 3))), (0, 2, 3)),
    "fused": (Shape(((2,), (12, 12))), (1, 2)),
}


def submesh(name: str, first: int, fixed: tuple[tuple[str, int], ...] = (), **axes: int) -> Submesh:
    return Submesh(Mesh(name, tuple(axes.items()), first), fixed)


def apart(source: dict[str, int], target: dict[str, int]) -> tuple[Submesh, Submesh]:
    """Two meshes, one behind the other."""
    return submesh("a", 0, **source), submesh("b", math.prod(source.values()), **target)


PLACES = {
    "1->2": apart({"dp": 1}, {"dp": 2}),
    "2->1": apart({"dp": 2}, {"dp": 1}),
    "2->4": apart({"dp": 2}, {"dp": 4}),
    "4->2": apart({"dp": 4}, {"dp": 2}),
    "2->3": apart({"dp": 2}, {"dp": 3}),
    "3->2": apart({"dp": 3}, {"dp": 2}),
    "4->4": apart({"dp": 4}, {"dp": 4}),
    "4->4 other axis": apart({"dp": 4}, {"tp": 4}),
    "4->6": apart({"dp": 4}, {"dp": 6}),
    "2->2x2": apart({"dp": 2}, {"dp": 2, "tp": 2}),
    "2x2->4": apart({"dp": 2, "tp": 2}, {"dp": 4}),
    "2x2->2x2": apart({"dp": 2, "tp": 2}, {"dp": 2, "tp": 2}),
    "2x2->2x2 turned": apart({"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}),
    "2x2->2x3": apart({"dp": 2, "tp": 2}, {"dp": 2, "tp": 3}),
    "2x2->3x2": apart({"dp": 2, "tp": 2}, {"dp": 3, "tp": 2}),
    "backwards": (submesh("b", 4, dp=2, tp=2), submesh("a", 0, dp=2, tp=2)),
    "stages": tuple(submesh("gpus", 3, (("pp", s),), dp=2, pp=3, tp=2) for s in (2, 0)),
    "a stage->all": (submesh("gpus", 0, (("pp", 1),), pp=2, dp=2), submesh("gpus", 0, pp=2, dp=2)),
    "all->a stage": (submesh("gpus", 0, pp=2, dp=2), submesh("gpus", 0, (("dp", 1),), pp=2, dp=2)),
}


def pairs(tensors, name: str, dims: str, most: int) -> list[tuple[Layout, Layout]]:
    """Layouts without partial sums on both sides: all pairs, or a sample of this many."""
    shape, factors = SHAPES[dims]
    sides = [list(tensors.layouts(s.axes, shape, factors, partial=False)) for s in PLACES[name]]
    found = list(itertools.product(*sides))
    return found if len(found) <= most else random.Random(f"{name} {dims}").sample(found, most)


@pytest.fixture
def world(lockstep) -> World:
    return lockstep.world()


def ranks_of(world: World, place: Submesh) -> dict[int, tuple[int, ...]]:
    """The ranks of a submesh with their coordinates on its axes."""
    first, size = place.mesh.first, math.prod(n for _, n in place.mesh.axes)
    where = {r: world.meshes[place.mesh.name].coordinates(r) for r in range(first, first + size)}
    inside = {r: at for r, at in where.items() if all(at[a] == c for a, c in place.fixed)}
    assert list(inside) == place.ranks()
    return {r: tuple(at[a] for a, _ in place.axes) for r, at in inside.items()}


def covered(leg: transfers.Leg) -> bool:
    """Whether the pieces that a rank gets are each element of its part exactly once."""
    count = torch.zeros([n for axis in leg.gets_shape for n in axis])
    for _, box in leg.gets:
        count[tuple(slice(s, s + n) for s, n in box)] += 1
    return bool((count == 1).all())


def travel(lockstep, tensors, world, source: Submesh, target: Submesh, shape: Shape, forth: Move, back: Move, layouts):
    """Carries random numbers there and others back; whether all arrive in the layouts (before, after, gradients)."""
    world.meshes = {s.mesh.name: mesh.RankMesh(s.mesh.name, dict(s.mesh.axes), s.mesh.first) for s in (source, target)}
    entry = TransferEntry(
        number=0,
        lane=0,
        plan="",
        source=_submesh(source),
        target=_submesh(target),
        forward=_move(forth),
        value="x",
        source_slot="x",
        target_slot="y",
        backward=_move(back),
        dtype="float64",
        time=(),
        uneven={},
    )
    messages = [decoded(TransferEntry, json.loads(to_json(entry)))]
    written = SimpleNamespace(meshes=(), groups=(), messages=messages)
    here, there = ranks_of(world, source), ranks_of(world, target)
    generator = torch.Generator().manual_seed(0)
    before, after, produced, needed = layouts
    for side, (senders, given, receivers, wanted) in {
        "forward": ((here, source), before, (there, target), after),
        "backward": ((there, target), produced, (here, source), needed),
    }.items():
        whole = torch.randint(-99, 100, shape.sizes, generator=generator).double()
        held = tensors.spread(whole, shape, given, senders[1].axes, generator)
        movers = {}
        for rank in sorted({*senders[0], *receivers[0]}):
            lockstep.rank = rank
            world.broadcasts.clear()
            rank_setup.join_world(written, world)
            transfer = rank_setup.messages_of(written, world)[0]
            leg = getattr(transfer, side)
            movers[rank] = transfers.Mover(torch.device("cpu"), world)
            assert bool(leg.gets) == (rank in receivers[0]) and (not leg.sends or rank in senders[0])
            assert rank not in receivers[0] or covered(leg)
            value = held[senders[0][rank]] if rank in senders[0] else None
            movers[rank].start(transfer, leg, value, 0, ())
        arrived = {at: movers[rank].wait(0, ()) for rank, at in receivers[0].items()}
        assert tensors.check(arrived, whole, shape, wanted), (side, str(given), str(wanted))
    assert not any(lockstep.mail.values()), "a piece was sent that nobody takes"


@pytest.mark.covering
@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("name", PLACES)
def test_every_transfer(lockstep, tensors, world, name: str, dims: str) -> None:
    """Numbers arrive where they should, and devices that hold the same share the sending."""
    source, target = PLACES[name]
    shape, _ = SHAPES[dims]
    for number, (before, after) in enumerate(pairs(tensors, name, dims, 200)):
        forth = plan_move(before, source, after, target, shape)
        assert shared(forth, before, source), f"{before} -> {after}"
        if number < 60:
            back = plan_move(after, target, before, source, shape)
            travel(lockstep, tensors, world, source, target, shape, forth, back, (before, after, after, before))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", PLACES)
def test_gradients_may_lie_otherwise_than_values(lockstep, tensors, world, name: str) -> None:
    source, target = PLACES[name]
    shape, _ = SHAPES["2-D"]
    drawn = pairs(tensors, name, "2-D", 20)
    for (before, after), (needed, produced) in zip(drawn, reversed(drawn), strict=True):
        forth, back = (
            plan_move(before, source, after, target, shape),
            plan_move(produced, target, needed, source, shape),
        )
        travel(lockstep, tensors, world, source, target, shape, forth, back, (before, after, produced, needed))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", PLACES)
def test_what_several_need_may_be_broadcast(lockstep, tensors, world, name: str) -> None:
    source, target = PLACES[name]
    shape, _ = SHAPES["2-D"]
    for before, after in pairs(tensors, name, "2-D", 40):
        ways = (before, source, after, target), (after, target, before, source)
        forth, back = (replace(plan_move(*way, shape), broadcast=True) for way in ways)
        travel(lockstep, tensors, world, source, target, shape, forth, back, (before, after, after, before))


def test_a_broadcast_goes_around_its_ranks() -> None:
    """From rank 2, or 3, to the ranks behind it, then to those in front; alone each piece has a path of its own."""
    mesh = Mesh("m", (("pp", 3), ("tp", 2)), 0)
    one, all_ = Submesh(mesh, (("pp", 1),)), Submesh(mesh)
    move = plan_move(Layout((REPLICATE,)), one, Layout((REPLICATE, REPLICATE)), all_, Shape(((8,),)))
    assert move.repeats
    around = replace(move, broadcast=True)
    assert [*around.paths(one, all_)] == [((2, 4, 0), 8), ((3, 5, 1), 8)]
    assert [*move.paths(one, all_)] == [((2, 0), 8), ((2, 2), 8), ((2, 4), 8), ((3, 1), 8), ((3, 3), 8), ((3, 5), 8)]


# -- who sends ---------------------------------------------------------------------------------------------------------


def shared(move: Move, before: Layout, source: Submesh) -> bool:
    """Whether devices that hold the same send the same number of pieces, give or take one."""
    free = [p for (a, _), p in zip(source.axes, before.places, strict=True) if a not in move.aligned]
    sizes = [n for a, n in source.axes if a not in move.aligned]
    sent = Counter(piece.source for piece in move.pieces)
    groups: dict[tuple[int, ...], list[int]] = {}
    for at in itertools.product(*map(range, sizes)):
        same = tuple(c for c, p in zip(at, free, strict=True) if p in before.shards())
        groups.setdefault(same, []).append(sent[at])
    return all(max(g) - min(g) <= 1 for g in groups.values())


@pytest.mark.parametrize("stage", range(3))
def test_a_device_keeps_what_it_has(stage: int) -> None:
    """All devices have a value that one of them needs, or get what one of them has."""
    mesh = Mesh("m", (("pp", 3), ("tp", 2)), 0)
    everywhere, one = Submesh(mesh), Submesh(mesh, (("pp", stage),))
    shape, whole, half = Shape(((8,),)), Layout((REPLICATE, REPLICATE)), Layout((REPLICATE, Shard(0, Digit(2, 4))))
    for held, needed in ((whole, Layout((REPLICATE,))), (half, Layout((Shard(0, Digit(2, 4)),)))):
        for piece in plan_move(held, everywhere, needed, one, shape).pieces:
            assert piece.source[0] == stage
    back = plan_move(Layout((REPLICATE,)), one, whole, everywhere, shape)
    assert all(p.source == p.target[1:] for p in back.pieces if p.target[0] == stage)


def test_aligned_devices_exchange_only_with_each_other(tensors) -> None:
    source, target = PLACES["2x2->2x2"]
    shape, factors = SHAPES["2-D"]
    for layout in tensors.layouts(source.axes, shape, factors, partial=False):
        move = plan_move(layout, source, layout, target, shape)
        lonely = len({d.factor for d in layout.shards()}) == len(layout.shards())
        assert not lonely or (move.aligned == ("dp", "tp") and len(move.pieces) == 1)


# -- parts in time -----------------------------------------------------------------------------------------------------

ROWS = Shape(((16,),))


def row(stride: int, count: int) -> Shard:
    return Shard(0, Digit(count, stride))


@pytest.mark.parametrize(
    ("digit", "times", "kept"),
    [
        (row(8, 2), (), True),
        (row(4, 2), (), False),  # of every half a half: two boxes
        (row(8, 2), (row(4, 2),), True),
        (row(8, 2), (row(2, 4),), True),
        (row(4, 2), (row(8, 2),), True),  # the half of each part
        (row(8, 2), (row(8, 2),), False),  # half of the parts, and none of the others
        (row(8, 2), (row(4, 4),), False),
        (row(2, 2), (row(8, 2),), False),
        (row(2, 2), (row(8, 2), row(4, 2)), True),
    ],
)
def test_only_boxes_of_parts_travel(digit: Shard, times: tuple[Shard, ...], kept: bool) -> None:
    layout = Layout((digit,))
    assert keep_boxes(layout, ROWS, times) == (layout if kept else Layout((REPLICATE,)))
