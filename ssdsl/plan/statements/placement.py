"""`mesh` declares devices, with `for` a list of meshes; `assign` places operators on them."""

from collections.abc import Iterator
from enum import Enum
from functools import partial

from ssdsl.lang import nodes
from ssdsl.lang.suggest import counted
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.errors.values import Wanted
from ssdsl.plan.eval.expressions import evaluate, expect, turns, whole_number
from ssdsl.plan.eval.select import mesh_size, whole_operators
from ssdsl.plan.plan import InnerDevices, Mesh, Placement
from ssdsl.plan.statements.host import to_host
from ssdsl.plan.statements.param import origin_of
from ssdsl.plan.values import ActivationsOf, Devices, StateOf, is_devices
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

MOST_DEVICES = 65536


def mesh(ctx: Context, s: nodes.MeshStatement) -> None:
    """Declares a mesh, whose ranks follow those of earlier meshes; raises PlanError."""
    ctx.scope.bind(s.name, _declared(ctx, s, s.name.text))


def meshes(ctx: Context, s: nodes.MeshStatement, bindings: tuple[nodes.Binding, ...]) -> None:
    """Declares a list of meshes, `gpus[0]` and so on, one for each turn of a loop; raises PlanError."""
    ctx.scope.check_free(s.name)
    found = [_declared(turn, s, f"{s.name.text}[{k}]") for k, turn in enumerate(turns(ctx, bindings))]
    ctx.scope.bind(s.name, tuple(found))


def _declared(ctx: Context, s: nodes.MeshStatement, name: str) -> Devices:
    axes = tuple((axis.name.text, whole_number(ctx, axis.value)) for axis in s.axes)
    first = sum(mesh_size(mesh) for mesh in ctx.facts.meshes.values() if mesh.inside is None)
    new = Mesh(name, axes, first, s.span, None if s.on is None else _inside(ctx, s.on))
    _check(ctx, s, new)
    ctx.facts.meshes[name] = new
    for axis in s.axes:
        if origin := origin_of(ctx, axis.value):
            ctx.facts.axis_origins[name, axis.name.text] = origin
    return Devices(name)


def _inside(ctx: Context, on: nodes.On) -> InnerDevices:
    """The devices of a mesh on others: one slice, or several that differ in one coordinate, which grows in equal steps.
    Raises PlanError."""
    if on.word.text != "on":
        raise PlanError(BadMesh(on.word.span, Flaw.NO_SUCH_WORD, on.word.text))
    slices = [expect(ctx, e, is_devices, Wanted.DEVICES) for e in on.devices]
    first = slices[0]
    if len(slices) == 1:
        return InnerDevices(first.mesh, first.fixed)
    coordinates = [dict(s.fixed) for s in slices]
    varying = [axis for axis, at in first.fixed if any(c.get(axis) != at for c in coordinates)]
    if len({(s.mesh, *c) for s, c in zip(slices, coordinates, strict=True)}) > 1 or len(varying) != 1:
        raise PlanError(BadMesh(on.span, Flaw.NO_SLICES, first.mesh))
    places = [c[varying[0]] for c in coordinates]
    start, step, count = places[0], places[1] - places[0], len(places)
    size = dict(ctx.facts.meshes[first.mesh].axes)[varying[0]]
    is_run = step > 0 and places == [*range(start, start + step * count, step)]
    if not is_run or size % (step * count) or start // step % count:
        raise PlanError(BadMesh(on.span, Flaw.NO_SLICES, first.mesh))
    fixed = tuple((axis, at) for axis, at in first.fixed if axis != varying[0])
    return InnerDevices(first.mesh, fixed, (varying[0], start, step, count))


def _check(ctx: Context, s: nodes.MeshStatement, new: Mesh) -> None:
    if new.inside is not None:
        outer = ctx.facts.meshes[new.inside.mesh]
        fixed = dict(new.inside.fixed) | ({} if new.inside.run is None else {new.inside.run[0]: 0})
        there = mesh_size(outer, tuple(fixed.items())) * (1 if new.inside.run is None else new.inside.run[3])
        if there != mesh_size(new):
            raise PlanError(BadMesh(s.span, Flaw.OTHER_SIZE, new.name, there))
    for axis, (name, size) in zip(s.axes, new.axes, strict=True):
        if size < 1:
            raise PlanError(BadMesh(axis.span, Flaw.EMPTY_AXIS, name, size))
    if new.inside is None and new.first + mesh_size(new) > MOST_DEVICES:
        raise PlanError(BadMesh(s.span, Flaw.TOO_LARGE, new.name, new.first + mesh_size(new)))
    seen: set[str] = set()
    for axis in s.axes:
        if axis.name.text in seen:
            raise PlanError(BadMesh(axis.name.span, Flaw.AXIS_TWICE, axis.name.text))
        seen.add(axis.name.text)
    if (known := ctx.facts.meshes.get(new.name)) is not None:
        raise PlanError(BadMesh(s.name.span, Flaw.IN_A_LOOP if known.span is s.span else Flaw.MESH_TWICE, new.name))


class Flaw(Enum):
    """The mistakes of a mesh: in words, and what to do."""

    EMPTY_AXIS = "the axis `{name}` has {number} devices", "give at least 1"
    TOO_LARGE = "{number:,} devices are too many", f"a plan has at most {MOST_DEVICES:,} devices"
    AXIS_TWICE = "the mesh has two axes `{name}`", "name them apart"
    OTHER_SIZE = "`{name}` has another number of devices than these", "make the product of its axes {number:,}"
    NO_SUCH_WORD = "`{name}` says nothing about a mesh", "write `on` in front of the devices of earlier meshes"
    NO_SLICES = (
        "these slices are no part of `{name}` in its order",
        "list slices of one mesh that differ in one coordinate, which grows in equal steps",
    )
    NO_DIVISION = (
        "no axes have the boundaries of {name}",
        "choose axes whose sizes divide each other, the outermost first",
    )
    NAMED_AS = (
        "the index `{name}` has the name of an axis of the outer mesh",
        "choose another name: on the inner mesh its parts run one after another",
    )
    MESH_TWICE = "there is already a mesh `{name}`", "name them apart"
    IN_A_LOOP = (
        "each turn declares a mesh `{name}`",
        "write the loop behind it, `mesh ... for s in 0..S`: a list of meshes",
    )


class BadMesh(Traced):
    """The axes of a mesh have whole sizes of at least 1, distinct names, and not too many devices together."""

    code = "E0251"
    title = "{reason}"
    flaw: Flaw
    name: str
    number: int = 0

    @property
    def change(self) -> str:
        _, change = self.flaw.value
        return change.format(name=self.name, number=self.number)

    @property
    def reason(self) -> str:
        return self.flaw.value[0].format(name=self.name, number=self.number)


def assign(ctx: Context, s: nodes.AssignStatement) -> None:
    """Places the COMPUTE operators of a selection; the others run wherever their consumers are. State goes to the
    host."""
    value = evaluate(ctx, s.operators)
    if isinstance(value, StateOf | ActivationsOf):
        to_host(ctx, s, value)
        return
    found = [expect(ctx, e, is_devices, Wanted.DEVICES) for e in (s.devices, *s.copies)]
    placement, *copies = [Placement(devices.mesh, devices.fixed, s.span) for devices in found]
    operators = whole_operators(ctx, value, s.operators, "assign", what=tuple(map(str, (placement, *copies))))
    place(ctx, operators, placement, tuple(copies))


def place(ctx: Context, operators: frozenset[str], placement: Placement, copies: tuple[Placement, ...] = ()) -> None:
    """Places operators, and copies of them in further places; raises PlanError if some of them are placed elsewhere
    already."""
    named = ctx.model.only_compute(operators)
    for those, slice_ in _slices(ctx, named, placement):
        _place(ctx, those, slice_, copies)


def _slices(
    ctx: Context, operators: frozenset[str], placement: Placement
) -> Iterator[tuple[frozenset[str], Placement]]:
    """Yields the operators with the devices that they are placed on: those that are a part along an axis, of which the
    plan names parts, on the devices with its coordinate."""
    fixed, axes = dict(placement.fixed), [axis for axis, _ in ctx.facts.meshes[placement.mesh].axes]
    groups: dict[tuple[tuple[str, int], ...], set[str]] = {}
    for name in operators if ctx.model.parts else ():
        at = {run.index: run.first for run in ctx.model.parts.get(name, ())} | fixed
        groups.setdefault(tuple((axis, at[axis]) for axis in axes if axis in at), set()).add(name)
    if len(groups) < 2 and not any(at != placement.fixed for at in groups):
        yield operators, placement
        return
    for coordinates, names in groups.items():
        yield frozenset(names), replace(placement, fixed=coordinates)


def _place(ctx: Context, named: frozenset[str], placement: Placement, copies: tuple[Placement, ...]) -> None:
    records = ctx.facts.operators.at
    numbers, stays = ctx.model.numbers(named), named <= ctx.model.graph.repeated
    placed = [(n, record.place) for n in numbers if (record := records[n]) is not None and record.place is not None]
    taken = {n for n, _ in placed}
    put = partial(replace, place=placement, copies=copies, stays=stays)
    ctx.facts.revise([n for n in numbers if n not in taken] if taken else numbers, put)
    twice = [(ctx.model.graph.operators[n], place) for n, place in placed if place != placement]
    if twice:
        op, known = twice[0]
        raise PlanError(
            AssignedTwice(placement.span, ctx.facts.of(op.name).module(op), known, len(twice), first=known.span)
        )


class AssignedTwice(Conflict):
    """Two `assign` put one operator on different devices."""

    code = "E0253"
    title = "`{operator}` is already assigned to `{before}`"
    note = "{more}"
    help = "leave it out of one: `assign (A - B) to ...`"
    earlier = "assigned here first"
    operator: str
    before: Placement
    count: int  # of operators like this

    @property
    def more(self) -> str:
        others = self.count - 1
        return f"and so {'is' if others == 1 else 'are'} {counted(others, 'more operator')}" if others else ""
