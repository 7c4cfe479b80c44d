"""Every transition between two layouts, planned, written out as a program's text, and run on real numbers."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ssdsl.cluster.link import LOOPBACK, Link, MeshLinks
from ssdsl.codegen.expressions import conversion_text, step_text
from ssdsl.ir.comm import AllGather, AllToAll, Narrow, ReduceScatter, Step, travels
from ssdsl.ir.function import Conversion
from ssdsl.ir.layout import PARTIAL, REPLICATE, Cut, Layout, Shape, Shard
from ssdsl.ir.value import Name, Type, Var
from ssdsl.lower.conversions.reshard import reshard
from ssdsl.plan.regions import Digit, nests
from ssdsl.runtime.layout.mesh import RankMesh
from ssdsl.runtime.ranks import collectives
from ssdsl.runtime.ranks.transport import Transport
from ssdsl.runtime.ranks.world import World

Axes = tuple[tuple[str, int], ...]
Held = dict[tuple[int, ...], torch.Tensor]  # what each device holds, by its coordinates

MESHES = [(2,), (4,), (2, 2), (8,), (2, 4), (4, 2), (3,), (2, 3), (3, 2)]
LARGE = [(16,), (2, 8), (8, 2), (4, 4), (2, 2, 4), (2, 4, 2), (4, 2, 2), (2, 2, 2, 2)]


def axes_of(sizes: tuple[int, ...]) -> Axes:
    return tuple(zip(("dp", "tp", "cp", "ep"), sizes, strict=False))


def tensor(dims: int, devices: int) -> tuple[Shape, tuple[int, ...]]:
    """A shape whose splittable factors, given with it, all the devices can cut; some lie amid a fused axis."""
    if dims == 2:
        return Shape(((devices,), (3, devices, 2))), (0, 2)
    return Shape(((devices,), (2, devices), (devices, 3))), (0, 2, 3)


@dataclass(eq=False)
class State:
    """What all ranks hold, and what each step that was carried out made of it."""

    parts: tuple[torch.Tensor, ...]
    after: dict[str, "State"] = field(default_factory=dict)


class Devices:
    """The ranks of one mesh. A step on the same numbers is carried out once."""

    def __init__(self, lockstep, axes: Axes, first: int = 0) -> None:
        self.lockstep, self.axes = lockstep, axes
        mesh = RankMesh("gpus", dict(axes), first)
        names = [a for a, _ in axes]
        wanted = [c for n in range(1, len(names) + 1) for c in itertools.combinations(names, n)]
        self.coordinates: dict[int, tuple[int, ...]] = {}
        self.functions: dict[int, dict[str, object]] = {}
        for rank in range(first, first + mesh.size):
            lockstep.rank, world = rank, lockstep.world()
            world.join([mesh], [("gpus", group) for group in wanted])
            self.coordinates[rank] = tuple((world.at("gpus", {}) or {})[a] for a in names)
            groups = {"_".join(group): world.groups["gpus", group] for group in wanted}
            for at, name in zip(self.coordinates[rank], names, strict=True):
                assert groups[name].index == at, (
                    "the place in a group is the coordinate: pieces are joined in that order"
                )
            self.functions[rank] = vars(collectives) | groups
        self.known: dict[tuple[bytes, ...], State] = {}
        self.compiled: dict[str, dict[int, Callable[[torch.Tensor], torch.Tensor]]] = {}

    def state(self, held: Held) -> State:
        return self._known(tuple(held[at] for at in self.coordinates.values()))

    def held(self, state: State) -> Held:
        return dict(zip(self.coordinates.values(), state.parts, strict=True))

    def run(self, state: State, steps: tuple[Step, ...]) -> State:
        for step in steps:
            text = step_text(step, "_".join)
            if text not in state.after:
                functions = self.evaluate(text)
                given = zip(self.coordinates, state.parts, strict=True)
                made = self.lockstep.run({rank: partial(functions[rank], x) for rank, x in given})
                state.after[text] = self._known(tuple(made[r] for r in self.coordinates))
            state = state.after[text]
        return state

    def evaluate(self, text: str) -> dict[int, Callable[[torch.Tensor], torch.Tensor]]:
        if text not in self.compiled:
            self.compiled[text] = {rank: eval(text, names) for rank, names in self.functions.items()}
        return self.compiled[text]

    def _known(self, parts: tuple[torch.Tensor, ...]) -> State:
        key = tuple(str(tuple(x.shape)).encode() + x.numpy().tobytes() for x in parts)
        return self.known.setdefault(key, State(parts))


def whole_tensor(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-99, 100, shape.sizes, generator=generator).double()


def wrong(lockstep, tensors, axes: Axes, shape: Shape, pairs: list[tuple[Layout, Layout]], first: int = 0) -> list[str]:
    """The transitions that do not lead where they should, with their steps."""
    devices = Devices(lockstep, axes, first)
    generator = torch.Generator().manual_seed(0)
    whole = whole_tensor(shape, generator)
    states: dict[Layout, State] = {}
    right: dict[tuple[State, Layout], bool] = {}
    found = []
    for before, after in pairs:
        for layout in (before, after):
            if layout not in states:
                states[layout] = devices.state(tensors.spread(whole, shape, layout, axes, generator))
        steps = reshard(before, after, shape, axes, 4, MeshLinks((LOOPBACK,) * len(axes)))
        reached = devices.run(states[before], steps)
        if (reached, after) not in right:
            same = reached is states[after]  # or, of partial sums, other parts with the same sum
            right[reached, after] = same or tensors.check(devices.held(reached), whole, shape, after)
        if not right[reached, after]:
            found.append(f"{before} -> {after}: {' '.join(step_text(s, '_'.join) for s in steps)}")
    return found


@pytest.mark.parametrize("dims", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "sizes", [*MESHES, pytest.param((2, 2, 2), marks=pytest.mark.slow)], ids=lambda sizes: "x".join(map(str, sizes))
)
def test_every_transition(lockstep, tensors, sizes: tuple[int, ...], dims: int) -> None:
    axes = axes_of(sizes)
    shape, factors = tensor(dims, math.prod(sizes))
    layouts = list(tensors.layouts(axes, shape, factors))
    pairs = list(itertools.product(layouts, layouts))
    if len(pairs) > 10000:  # other orders of nesting than the mesh's are a sample here; all are in the smaller cases
        in_order = {x for x in layouts if nests_in_order(x)}
        draw = random.Random(0)
        pairs = [(a, b) for a, b in pairs if (a in in_order and b in in_order) or draw.random() < 0.05]
    assert wrong(lockstep, tensors, axes, shape, pairs, first=5) == []


def nests_in_order(layout: Layout) -> bool:
    """Whether the first of the axes that share a factor cuts it outermost."""
    pairs = itertools.combinations(layout.shards(), 2)
    return all(a.factor != b.factor or a.digit.stride > b.digit.stride for a, b in pairs)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("sizes", LARGE, ids=lambda sizes: "x".join(map(str, sizes)))
def test_transitions_on_16_devices(lockstep, tensors, sizes: tuple[int, ...], dims: int) -> None:
    axes = axes_of(sizes)
    shape, factors = tensor(dims, 16)
    layouts = list(tensors.layouts(axes, shape, factors))
    draw = random.Random(f"{sizes} {dims}")
    sources = draw.sample(layouts, min(12, len(layouts)))
    pairs = [(before, draw.choice(layouts)) for before in sources for _ in range(10)]
    assert wrong(lockstep, tensors, axes, shape, pairs) == []


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), pytest.param((2, 2, 2), marks=pytest.mark.slow)], ids=str)
def test_splits_of_every_factor_of_a_fused_axis(lockstep, tensors, sizes: tuple[int, ...]) -> None:
    axes, shape = axes_of(sizes), Shape(((2,), (4, 2, 4)))
    layouts = list(tensors.layouts(axes, shape, (0, 1, 2, 3)))
    draw = random.Random(0)
    pairs = [(draw.choice(layouts), draw.choice(layouts)) for _ in range(600)]
    assert wrong(lockstep, tensors, axes, shape, pairs) == []


def test_regions_of_several_axes_meet_halfway() -> None:
    """Halos of two axes come from plain digits, and lead to those of one axis, without the whole tensor."""
    axes, shape, links = axes_of((2, 2)), Shape(((8,), (4,))), MeshLinks((LOOPBACK,) * 2)
    halos = Shard(0, Digit(4, at=tuple(((max(0, s - 1), min(8, s + 3)),) for s in (0, 2, 4, 6))))
    joined, rows, columns = Layout((halos, halos)), Shard(0, Digit(2, 4)), Shard(1, Digit(2, 2))
    ends = {
        Layout((rows, Shard(0, Digit(2, 2)))): ("exchange",),
        Layout((rows, REPLICATE)): ("exchange",),
        Layout((rows, columns)): ("exchange", "narrow"),
        Layout((REPLICATE, columns)): ("exchange", "narrow"),
        Layout((REPLICATE, REPLICATE)): ("exchange",),
    }
    for end, kinds in ends.items():
        steps = reshard(joined, end, shape, axes, 4, links)
        assert tuple(s.kind for s in steps) == kinds
        assert steps[0].axes == ("dp", "tp")
    (back,) = reshard(Layout((rows, REPLICATE)), joined, shape, axes, 4, links)
    assert travels(back) and back.elements == 1 * 4  # a row of the other half
    (narrow,) = reshard(Layout((REPLICATE, REPLICATE)), joined, shape, axes, 4, links)
    assert narrow == Narrow(("dp", "tp"), 32, Cut(0, 1, 4, halos.digit.at))
    gathered = reshard(Layout((rows, REPLICATE)), joined, shape, axes, 4, links, sums=True)
    assert [s.kind for s in gathered] == ["all_gather", "narrow"]  # what is the same on two devices is not added twice


# -- digits of any stride ----------------------------------------------------------------------------------------------


@st.composite
def transitions(draw) -> tuple[Axes, Shape, Layout, Layout]:
    """Random meshes, shapes and digits, also with gaps between them (where an index in time lies)."""
    axes = axes_of(tuple(draw(st.lists(st.sampled_from([2, 3]), min_size=1, max_size=3))))
    factor = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
    shape = Shape(tuple(map(tuple, draw(st.lists(st.lists(factor, max_size=3), min_size=1, max_size=3)))))

    def layout() -> Layout:
        places = []
        for _, n in axes:
            sharded = [p for p in places if isinstance(p, Shard)]
            digits = [
                Shard(f, digit)
                for f, size in enumerate(shape.factors)
                for stride in range(1, size // n + 1)
                if nests((*(p.digit for p in sharded if p.factor == f), digit := Digit(n, stride)), size)
            ]
            places.append(draw(st.sampled_from([REPLICATE, PARTIAL, *digits])))
        return Layout(tuple(places))

    return axes, shape, layout(), layout()


@given(transitions())
@settings(max_examples=150, deadline=None)
def test_a_path_turns_its_first_layout_into_its_last(lockstep, tensors, transition) -> None:
    axes, shape, before, after = transition
    assume(shape.numel <= 4096)
    assert wrong(lockstep, tensors, axes, shape, [(before, after)]) == []


# -- backward ----------------------------------------------------------------------------------------------------------


def random_gradient(layout: Layout, draw: random.Random) -> Layout:
    """A gradient is sharded as its value is; along other axes it is whole or a partial sum."""
    return Layout(tuple(p if isinstance(p, Shard) else draw.choice([REPLICATE, PARTIAL]) for p in layout.places))


def train(text: str, names: dict[str, object], value: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    """The result of a conversion as a program writes it, and the gradient of its argument, a leaf or a fresh result."""
    leaf = value.clone().requires_grad_()
    with World(Transport()).enter():  # the groups bring their own
        y = eval(text, names | {"leaf": leaf, "fresh": leaf + 0})
        y.backward(gradient.clone())
    return [y.detach(), leaf.grad]


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2), (2, 4), (2, 2, 2)], ids=str)
def test_gradients_arrive_in_the_layout_needed(lockstep, tensors, sizes: tuple[int, ...]) -> None:
    axes = axes_of(sizes)
    devices = Devices(lockstep, axes)
    shape, factors = tensor(3, math.prod(sizes))
    layouts = list(tensors.layouts(axes, shape, factors))
    generator = torch.Generator().manual_seed(0)
    whole, whole_gradient = whole_tensor(shape, generator), whole_tensor(shape, generator)
    draw = random.Random(0)
    for _ in range(40):
        before, after = draw.choice(layouts), draw.choice(layouts)
        produced, needed = random_gradient(after, draw), random_gradient(before, draw)
        forward = reshard(before, after, shape, axes, 4, MeshLinks((LOOPBACK,) * len(axes)))
        backward = reshard(produced, needed, shape, axes, 4, MeshLinks((LOOPBACK,) * len(axes)))
        value, in_place = draw.choice([("leaf", (False, False)), ("leaf", (False, True)), ("fresh", (True, True))])
        result = Var(Name("x", 1), Type(after), None, (), "float32")
        text = conversion_text(Conversion(Name("x"), result, forward, backward, in_place), value, "_".join)
        given = tensors.spread(whole, shape, before, axes, generator)
        returned = tensors.spread(whole_gradient, shape, produced, axes, generator)

        made = lockstep.run(
            {
                rank: partial(train, text, devices.functions[rank], given[at], returned[at])
                for rank, at in devices.coordinates.items()
            }
        )
        places = devices.coordinates.items()
        assert tensors.check({at: made[r][0] for r, at in places}, whole, shape, after), text
        assert tensors.check({at: made[r][1] for r, at in places}, whole_gradient, shape, needed), text


# -- the cheapest ------------------------------------------------------------------------------------------------------

FAR = Link("far", bandwidth=1e12, latency=1e-3)
NARROW = Link("narrow", bandwidth=1e6, latency=1e-9)


def edge_cost(before: Layout, after: Layout, axes: Axes, shape: Shape, link: Link) -> float:
    """The cost of the one collective between two layouts; infinite if there is none."""
    changes = [(a, b, n) for a, b, (_, n) in zip(before.places, after.places, axes, strict=True) if a != b]
    size = 4 * shape.local(before.shards()).numel
    if changes and all((a, b) == (PARTIAL, REPLICATE) for a, b, _ in changes):
        return link.collective_time("all_reduce", size, math.prod(n for _, _, n in changes))
    if len(changes) > 1:
        digits = (*before.shards(), *(b for _, b, _ in changes if isinstance(b, Shard)))
        if not all(isinstance(p, Shard) for a, b, _ in changes for p in (a, b)) or not nest(digits, shape):
            return math.inf
        n = math.prod(n for _, _, n in changes)
        return link.collective_time("all_to_all", size * n, n)
    if not changes:
        return 0.0
    ((a, b, n),) = changes
    if a is REPLICATE:
        return 1e-9
    if a is PARTIAL:
        return link.collective_time("reduce_scatter", size, n)
    if b is REPLICATE:
        return link.collective_time("all_gather", size * n, n)
    same = [d.digit for d in (*before.shards(), b) if b is not PARTIAL and d.factor == b.factor]
    if b is PARTIAL or not nests(tuple(same), shape.factors[b.factor]):
        return math.inf
    return link.collective_time("all_to_all", size * n, n)


def path_cost(steps: tuple[Step, ...], before: Layout, axes: Axes, shape: Shape, link: Link) -> float:
    """The cost of the steps, following the size of the local tensor."""
    total, size = 0.0, 4.0 * shape.local(before.shards()).numel
    for step in steps:
        n = math.prod(dict(axes)[a] for a in step.axes)
        if isinstance(step, AllGather | AllToAll):
            total += link.collective_time(step.kind, size * n, n)
        elif travels(step):
            total += link.collective_time(step.kind, size, n)
        else:
            total += 1e-9
        size *= {AllGather: n, ReduceScatter: 1 / n, Narrow: 1 / n}.get(type(step), 1)
    return total


def cheapest(before: Layout, after: Layout, axes: Axes, shape: Shape, link: Link) -> float:
    """The least cost over all chains of layouts, each axis as before, as after, or replicated (Bellman-Ford)."""
    choices = [dict.fromkeys((a, b, REPLICATE)) for a, b in zip(before.places, after.places, strict=True)]
    states = [x for places in itertools.product(*choices) if fits(x := Layout(places), shape)]
    costs = {(a, b): edge_cost(a, b, axes, shape, link) for a in states for b in states}
    best = {x: 0.0 if x == before else math.inf for x in states}
    for _ in range(len(states)):
        better = {b: min(best[a] + costs[a, b] for a in states) for b in states}
        if better == best:
            break
        best = better
    return best[after]


def fits(layout: Layout, shape: Shape) -> bool:
    return nest(layout.shards(), shape)


def nest(digits: tuple[Shard, ...], shape: Shape) -> bool:
    return all(nests(tuple(d.digit for d in digits if d.factor == f), size) for f, size in enumerate(shape.factors))


def completed(before: Layout, after: Layout, axes: Axes, shape: Shape, link: Link) -> float:
    """The cost of completing every axis that changes, one by one, before cutting it again."""
    cost, layout = 0.0, before
    for a, (old, new) in enumerate(zip(before.places, after.places, strict=True)):
        if old != new and old is not REPLICATE:
            cost += edge_cost(layout, layout.replacing(a, REPLICATE), axes, shape, link)
            layout = layout.replacing(a, REPLICATE)
    return cost + 1e-9 * len(axes)


CHEAPEST = [((4,), 3), ((2, 2), 2), ((2, 2), 3), ((2, 3), 2), ((2, 2, 2), 2), ((2, 2, 2), 3)]


@pytest.mark.parametrize("link", [LOOPBACK, FAR, NARROW], ids=lambda link: link.name)
@pytest.mark.parametrize(("sizes", "dims"), CHEAPEST, ids=str)
def test_no_path_is_cheaper(tensors, sizes: tuple[int, ...], dims: int, link: Link) -> None:
    axes = axes_of(sizes)
    shape, factors = tensor(dims, math.prod(sizes))
    pairs = list(itertools.product(tensors.layouts(axes, shape, factors), repeat=2))
    for before, after in random.Random(0).sample(pairs, min(50, len(pairs))):
        steps = reshard(before, after, shape, axes, 4, MeshLinks((link,) * len(axes)))
        cost = path_cost(steps, before, axes, shape, link)
        said = f"{before} -> {after}: {' '.join(s.kind for s in steps)}"
        assert cost == pytest.approx(cheapest(before, after, axes, shape, link), rel=1e-9), said
        if not {*before.shards()} & {*after.shards()}:  # else the digit may have to leave one axis for another
            assert cost <= completed(before, after, axes, shape, link) * (1 + 1e-9), said


ROW, COLUMN = Shard(0, Digit(2, 128)), Shard(2, Digit(2, 128))


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ([PARTIAL, REPLICATE], [REPLICATE, REPLICATE], ["all_reduce(dp)"]),
        ([PARTIAL, PARTIAL], [REPLICATE, REPLICATE], ["all_reduce(dp_tp)"]),
        ([PARTIAL, ROW], [REPLICATE, ROW], ["all_reduce(dp)"]),
        ([PARTIAL, REPLICATE], [ROW, REPLICATE], ["reduce_scatter(dp, dim=0)"]),
        ([REPLICATE, PARTIAL], [REPLICATE, COLUMN], ["reduce_scatter(tp, dim=1, outer=3)"]),
        ([ROW, REPLICATE], [REPLICATE, REPLICATE], ["all_gather(dp, dim=0)"]),
        ([ROW, REPLICATE], [COLUMN, REPLICATE], ["all_to_all(dp, [(0, 1, 2)], [(1, 3, 2)])"]),
        ([REPLICATE, REPLICATE], [REPLICATE, COLUMN], ["narrow(tp, dim=1, outer=3)"]),
        ([REPLICATE, REPLICATE], [REPLICATE, PARTIAL], ["keep_first(tp)"]),
        ([PARTIAL, COLUMN], [PARTIAL, ROW], ["all_to_all(tp, [(1, 3, 2)], [(0, 1, 2)])"]),
        ([ROW, COLUMN], [ROW, COLUMN], []),
        (
            [ROW, Shard(0, Digit(2, 64))],
            [Shard(2, Digit(2, 64)), COLUMN],
            ["all_to_all(dp_tp, [(0, 1, 4)], [(1, 6, 2), (1, 3, 2)])"],
        ),
        (
            [ROW, COLUMN],
            [Shard(0, Digit(2, 64)), Shard(0, Digit(2, 32))],
            ["all_to_all(dp_tp, [(0, 1, 2), (1, 3, 2)], [(0, 1, 4)])"],
        ),
        (
            [ROW, Shard(0, Digit(2, 64))],
            [COLUMN, Shard(2, Digit(2, 64))],
            ["all_to_all(dp_tp, [(0, 1, 4)], [(1, 3, 4)])"],
        ),
    ],
)
def test_textbook(before: list, after: list, text: list[str]) -> None:
    shape = Shape(((256,), (3, 256, 2)))
    steps = reshard(
        Layout(tuple(before)), Layout(tuple(after)), shape, (("dp", 2), ("tp", 2)), 4, MeshLinks((LOOPBACK,) * 2)
    )
    assert [step_text(s, "_".join) for s in steps] == text
