"""What travels when a plan changes between two steps: by the regions that each rank has under the one plan and needs
under the other, as `Engine.replan` moves them (`ssdsl/runtime/train/replan.py`).

Each rank's weights are laid out without numbers, on the meta device. A rank keeps what it has, and gets each other
element once, from the rank that owns it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch

from ssdsl.codegen.scope import Common
from ssdsl.codegen.table import OperatorsOf, program_table
from ssdsl.ir.program import Program
from ssdsl.record import Record
from ssdsl.run.in_process.alone import Alone
from ssdsl.runtime.checkpoints.content import Box, boxes_of
from ssdsl.runtime.checkpoints.held import both, without
from ssdsl.runtime.layout.cut import Piece
from ssdsl.runtime.program.table import Table
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.parts import LocalTensor, ReplicaOwners, local_tensors, pieces_of
from ssdsl.runtime.step.rank_setup import join_world, role_of, weights_of
from ssdsl.runtime.train.homes import home_ranks
from ssdsl.text.diagnostic import Diagnostic, PlanError

META = torch.device("meta")
Path = tuple[str, str]  # "weight" or "state", and the name of a weight


class Holding(Record):
    """The boxes of a tensor that a rank has, of so many bytes an element. `owns`: it is the one that gives them to
    others."""

    boxes: tuple[Box, ...]
    itemsize: int
    owns: bool

    @property
    def size_bytes(self) -> int:
        """The bytes of all boxes."""
        return self.itemsize * sum(box.size for box in self.boxes)


class Transition(Record):
    """The way from one plan to another. `held` are the bytes of each rank under both, `sent` those from one rank to
    another one, and `elements` how many elements have exactly one source."""

    held: tuple[tuple[int, int], ...]
    sent: Mapping[tuple[int, int], int]
    elements: int

    @property
    def size_bytes(self) -> int:
        """The bytes that travel."""
        return sum(self.sent.values())

    def got(self, rank: int) -> int:
        """The bytes that a rank gets."""
        return sum(size for (_, to), size in self.sent.items() if to == rank)

    def given(self, rank: int) -> int:
        """The bytes that a rank sends."""
        return sum(size for (of, _), size in self.sent.items() if of == rank)


def transition(before: Program, after: Program, state_tensors: int = 2) -> Transition:
    """The way of weights, buffers and of so many tensors of the optimizer's state for each weight.

    Raises PlanError unless both programs are for the same number of devices, and unless each element that a rank needs
    has exactly one source.
    """
    size = before.plan.devices
    if size != after.plan.devices:
        raise PlanError(OtherDevices(after.plan.meshes[0].span, size, after.plan.devices))
    old, new = ([*holdings(program, state_tensors)] for program in (before, after))
    owners: dict[Path, list[tuple[int, Holding]]] = {}
    for rank, held in enumerate(old):
        for path, holding in held.items():
            if holding.owns and all(holding.boxes != known.boxes for _, known in owners.get(path, ())):
                owners.setdefault(path, []).append((rank, holding))
    sent, elements = Counter[tuple[int, int]](), 0
    for rank, wanted in enumerate(new):
        for path, holding in wanted.items():
            have = old[rank][path].boxes if path in old[rank] else ()
            left = [*_left(holding.boxes, have)]
            found = [(owner, inner) for owner, its in owners.get(path, ()) for inner in _shared(left, its.boxes)]
            if sum(box.size for box in left) != sum(inner.size for _, inner in found) or not _are_apart(found):
                raise PlanError(NotFromOnePlace(None, path[1], rank))
            for owner, inner in found:
                sent[owner, rank] += inner.size * holding.itemsize
            elements += sum(box.size for box in holding.boxes)
    bytes_held = tuple((_bytes(was), _bytes(now)) for was, now in zip(old, new, strict=True))
    return Transition(bytes_held, dict(sent), elements)


def holdings(program: Program, state_tensors: int) -> Iterator[dict[Path, Holding]]:
    """Yields what each rank has of weights, buffers and the optimizer's state."""
    operators: OperatorsOf = {role.name: {} for role in program.roles}
    table = program_table(Common(program), {}, operators)
    dtypes = {v.name: v.dtype for v in program.graph.values.values()}
    size = program.plan.devices
    for rank in range(size):
        world = World(Alone(rank, size))  # type: ignore[arg-type]
        join_world(table, world)
        found: dict[Path, Holding] = {}
        trained = {w.name for role in table.roles for flat in role.flats for w in flat.weights}
        homes = home_ranks(role_of(table, world), world)
        for held in _held(table, world, dtypes):
            holding = Holding(tuple(box for box, _ in boxes_of(held)), held.tensor.element_size(), held.owns)
            found["weight", held.name] = holding
            if held.name in trained and held.name not in homes:
                found["state", held.name] = _times(holding, state_tensors)
        for name in (name for name, home in homes.items() if home == rank):
            shape = program.graph.values[name].shape
            whole = LocalTensor.whole(name, torch.empty(shape, dtype=getattr(torch, dtypes[name]), device=META))
            holding = Holding(tuple(box for box, _ in boxes_of(whole)), whole.tensor.element_size(), True)
            found["state", name] = _times(holding, state_tensors)
        yield found


def _times(holding: Holding, tensors: int) -> Holding:
    return Holding(holding.boxes, holding.itemsize * tensors, holding.owns)


def _held(table: Table, world: World, dtypes: Mapping[str, str]) -> list[LocalTensor]:
    """A rank's parts of all weights and buffers, without numbers."""
    role = role_of(table, world)
    if role is None:
        return []
    with torch.no_grad():
        weights = weights_of(table, role, world, _Numberless(dtypes), META)  # type: ignore[arg-type]
    return local_tensors(
        weights, {p.name: p for p in pieces_of(role.weights, role, world)}, ReplicaOwners(table, world)
    )


class _Numberless:
    """An initial state that has the shapes and types of parts alone."""

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        self.dtypes = dtypes

    def part(self, piece: Piece, device: torch.device) -> torch.Tensor:
        """The part of a weight, on meta."""
        return torch.empty([len(p) for p in piece.places()], dtype=getattr(torch, self.dtypes[piece.name]), device=META)


def _left(wanted: Iterable[Box], have: Iterable[Box]) -> Iterator[Box]:
    """Yields boxes of what is wanted and not there yet."""
    left = [*wanted]
    for own in have:
        cut = [(box, both(box, own)) for box in left]
        left = [rest for box, inner in cut for rest in ([box] if inner is None else without(box, inner))]
    yield from left


def _shared(left: Iterable[Box], boxes: Iterable[Box]) -> Iterator[Box]:
    """Yields the boxes that an owner gives of what is left."""
    for box in left:
        for own in boxes:
            if (inner := both(box, own)) is not None:
                yield inner


def _are_apart(found: list[tuple[int, Box]]) -> bool:
    """Whether no two owners give the same element."""
    boxes = [inner for _, inner in found]
    return not any(both(a, b) for n, a in enumerate(boxes) for b in boxes[n + 1 :])


def _bytes(held: Mapping[Path, Holding]) -> int:
    return sum(holding.size_bytes for holding in held.values())


class OtherDevices(Diagnostic):
    """A plan is changed between two steps on the same processes, so both plans need as many devices."""

    code = "E0536"
    title = "the plan before is for {before} devices, and this one for {after}"
    help = "set params of one of them: `--set` for both, `--and` for the second"
    before: int
    after: int


class NotFromOnePlace(Diagnostic):
    """An element that a rank needs under the new plan must be there already, or have exactly one owner under the old
    one."""

    code = "E0537"
    title = "rank {rank} does not get each element of `{name}` from exactly one place"
    help = "this is a bug of ssdsl: report it with the plans and the model"
    name: str
    rank: int
