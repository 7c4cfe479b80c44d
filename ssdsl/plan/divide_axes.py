"""Divides an axis of a mesh in several where dimensions are too short for all of it (`statements/inner_dims.py`).

    mesh gpus(tp = 4)                      mesh gpus(tp_outer = 2, tp_inner = 2)
    split model by heads into tp           split ... by heads into tp_outer
                                           split ... by heads_per_group into tp_inner
    split model by ffn into tp             split ... by ffn into tp_outer, tp_inner

The devices and their order stay the same, so the plan after this is one that a user could have written: nothing after
it knows of digits. It is given the names of the new axes, `divided`, for those who show them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ssdsl.identity import ByIdentity, distinct, places_of
from ssdsl.lang.suggest import listed
from ssdsl.model.graph import Operator
from ssdsl.plan.errors.split import Division, DoesNotDivide
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.plan import DividedAxis, Index, Keep, Mesh, OpPlan, Placement, Plan, StateShard
from ssdsl.plan.regions import Digit
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError


class AxisPlace(NamedTuple):
    """An axis of a mesh, by the names of both."""

    mesh: str
    axis: str


class Short(Record):
    """A dimension that has fewer positions than an axis has devices."""

    path: str
    dim: str
    positions: int

    def __str__(self) -> str:
        return f"`{self.dim}` = {self.positions}"


Divided = Mapping[AxisPlace, DividedAxis]
Ends = dict[int, tuple[Operator, Index]]  # the strides at which digits of an axis begin or end, and the first to do so


def divide_axes(plan: Plan) -> Plan:
    """The plan with several axes in place of one whose digits are cut. Raises PlanError."""
    cuts: dict[AxisPlace, Ends] = {}
    for mesh, operator, index in _digits(plan):
        assert index.of_axis is not None
        ends = index.of_axis.digit.stride, index.of_axis.digit.period
        found = cuts.setdefault(AxisPlace(mesh, index.name), {})
        found |= {end: (operator, index) for end in ends if end not in found}
    if not cuts:
        return plan
    taken = {axis for mesh in plan.meshes for axis, _ in mesh.axes}
    taken |= {index.name for record in plan.operators.values() for index in record.indices}
    sizes = {AxisPlace(mesh.name, axis): size for mesh in plan.meshes for axis, size in mesh.axes}
    divided = {place: _divided(place, sizes[place], ends, taken) for place, ends in cuts.items()}
    return replace(
        plan,
        meshes=tuple(replace(mesh, axes=tuple(_axes(mesh, divided))) for mesh in plan.meshes),
        operators=changed_records(plan, divided),
        state=plan.state.on_axes(lambda said: [(said.weights, renamed_of_state(said, plan.meshes, divided))]),
        divided=tuple(found for found in divided.values() if len(found.axes) > 1),
    )


def _digits(plan: Plan) -> Iterator[tuple[str, Operator, Index]]:
    """The indices that are digits, each with its operator and a mesh. Raises PlanError where they are no axis."""
    names = [*plan.operators]
    for record, (first, *_) in places_of(plan.operators.values()):
        name = names[first]
        for index in (i for i in record.indices if i.of_axis is not None):
            here = [mesh.name for mesh in _meshes(record, plan.meshes) if (index.name, index.devices) in mesh.axes]
            operator = plan.graph.by_name[name]
            if not here and record.place is not None:
                raise PlanError(_in_time(operator, index))
            yield from ((mesh, operator, index) for mesh in here)


def _meshes(record: OpPlan, meshes: Iterable[Mesh]) -> list[Mesh]:
    """The mesh of an operator; all of them if it has no place, because it runs wherever it is read."""
    return [mesh for mesh in meshes if record.place is None or mesh.name == record.place.mesh]


def _in_time(operator: Operator, index: Index) -> DoesNotDivide:
    """The mistake of parts that would run one after another, where each dimension has to be long enough."""
    dim, division = operator.dims[index.dim], Division(index.name, index.devices, None)
    return DoesNotDivide(index.span, dim.name, division, (), dim.size, dim.size, (operator.module,), has_others=False)


def _divided(place: AxisPlace, size: int, cuts: Ends, taken: set[str]) -> DividedAxis:
    """The axes in place of one: between each two of the places at which digits begin or end. Raises PlanError where one
    of these does not divide the next: then no order of axes has both digits."""
    ends = sorted({1, size, *cuts})
    for low, high in itertools.pairwise(ends):
        if high % low:
            one, other = (_short(*cuts[end]) for end in (low, high))
            raise PlanError(DividedTwice(cuts[high][1].span, place.axis, size, one, other))
    return named_anew(place, size, ends, taken)


def named_anew(place: AxisPlace, size: int, cuts: Iterable[int], taken: set[str]) -> DividedAxis:
    """The axes in place of one that is cut at these strides, each of which divides the next. Their names are new."""
    counts = [high // low for low, high in itertools.pairwise(sorted({1, size, *cuts}))][::-1]
    if len(counts) <= 1:  # digits of all of the axis, and of none of it
        return DividedAxis(place.mesh, place.axis, ((place.axis, size),))
    words = ["outer", *(f"middle{n or ''}" for n in range(len(counts) - 2)), "inner"]
    names = [next(n for n in _spellings(f"{place.axis}_{word}") if n not in taken) for word in words]
    taken.update(names)
    return DividedAxis(place.mesh, place.axis, tuple(zip(names, counts, strict=True)))


def _short(operator: Operator, index: Index) -> Short:
    dim = operator.dims[index.dim]
    return Short(operator.module, dim.name, dim.size)


def _spellings(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}{n}" for n in itertools.count(2))


# -- the plan with other axes ------------------------------------------------------------------------------------------


def _axes(mesh: Mesh, divided: Divided) -> Iterator[tuple[str, int]]:
    for name, size in mesh.axes:
        found = divided.get(AxisPlace(mesh.name, name))
        yield from ((name, size),) if found is None else found.axes


def renamed_axes(axes: Iterable[str], meshes: Sequence[Mesh], divided: Divided) -> Iterator[str]:
    """The axes of state in parts: those of each mesh that has them."""
    for axis in axes:
        found = (divided.get(AxisPlace(mesh.name, axis)) for mesh in meshes if axis in dict(mesh.axes))
        names = ((axis,) if one is None else tuple(name for name, _ in one.axes) for one in found)
        yield from dict.fromkeys(name for those in names for name in those)


def renamed_of_state(said: StateShard | Keep, meshes: Sequence[Mesh], divided: Divided) -> tuple[str, ...]:
    """The axes of a statement about state in parts. Raises PlanError where it gives portions along an axis that others
    have taken the place of."""
    for axis, _ in said.portions if isinstance(said, StateShard) else ():
        ways = (divided.get(AxisPlace(mesh.name, axis)) for mesh in meshes)
        if way := next((way for way in ways if way is not None and dict(way.axes).keys() != {axis}), None):
            raise PlanError(PortionsDivided(said.span, axis, tuple(name for name, _ in way.axes)))
    return tuple(dict.fromkeys(renamed_axes(said.axes, meshes, divided)))


def changed_records(
    plan: Plan, divided: Divided, moved_to: Callable[[Placement], Placement] = lambda place: place
) -> dict[str, OpPlan]:
    """The records of all operators, whose places are then moved. Operators that share a record share the new one."""
    records = distinct(plan.operators.values())
    places = distinct(record.place for record in records if record.place is not None)
    # places of one `assign` stay one object
    moved = ByIdentity((place, moved_to(_place(place, divided))) for place in places)
    changed = ByIdentity[OpPlan, OpPlan]()
    for record in records:
        place = None if record.place is None else moved[record.place]
        copies = tuple(moved_to(_place(copy, divided)) for copy in record.copies)
        changed[record] = replace(_record(record, plan.meshes, divided), place=place, copies=copies)
    return {name: changed[record] for name, record in plan.operators.items()}


def _record(record: OpPlan, meshes: Sequence[Mesh], divided: Divided) -> OpPlan:
    """The record of an operator, but for its place."""
    here = _meshes(record, meshes)
    indices, whole = (tuple(_changed(i, here, divided)) for i in (record.indices, record.whole))
    return replace(record, indices=indices, whole=whole)


def _changed(indices: Iterable[Index], meshes: Sequence[Mesh], divided: Divided) -> Iterator[Index]:
    """The indices of an operator that runs on these meshes. It loses one whose axis they have in different forms."""
    for index in indices:
        ways = [divided.get(AxisPlace(mesh.name, index.name)) for mesh in meshes if index.name in dict(mesh.axes)]
        if not any(ways):
            yield index
        elif ways[0] is not None and all(way is not None and way.axes == ways[0].axes for way in ways):
            inner = [_whole(AxisPlace(meshes[0].name, name), divided) for name in index.inner]
            yield from _parts(index, ways[0], tuple(itertools.chain(*inner)))


def _whole(place: AxisPlace, divided: Divided) -> tuple[str, ...]:
    """The names of the axes in place of one, all of them."""
    found = divided.get(place)
    return (place.axis,) if found is None else tuple(name for name, _ in found.axes)


def _parts(index: Index, divided: DividedAxis, inner: tuple[str, ...]) -> Iterator[Index]:
    """The indices in place of one, the outermost first: one for each axis that its digit has. Parts of unequal sizes,
    and those of keys beside queries, stay one index over all these axes, and over the `inner` ones that it had."""
    digit = index.digit if index.of_axis is None else index.of_axis.digit
    own = divided.axes if index.inner else divided.between(digit.stride, digit.period)
    if index.digit.at is not None or index.also is not None:
        yield replace(index, name=own[0][0], inner=(*(name for name, _ in own[1:]), *inner), of_axis=None)
    else:
        yield from (replace(index, name=name, digit=Digit(count), of_axis=None) for name, count in own)


def _place(place: Placement, divided: Divided) -> Placement:
    """The placement with a coordinate on each of the new axes."""
    fixed: list[tuple[str, int]] = []
    for name, at in place.fixed:
        found = divided.get(AxisPlace(place.mesh, name))
        fixed += [(name, at)] if found is None else found.coordinates(at)
    return replace(place, fixed=tuple(fixed))


# -- mistakes ----------------------------------------------------------------------------------------------------------


class PortionsDivided(Traced):
    """A plan gives the devices along an axis portions of state, and the compiler has other axes in place of it: a
    dimension is too short for all of it, or a mesh on a slice has other boundaries."""

    code = "E0388"
    title = "no portions of state along `{axis}`: it is divided into {those}"
    help = "leave the portions out, or give the mesh several axes, and portions along one of these"
    axis: str
    axes: tuple[str, ...]

    @property
    def those(self) -> str:
        return listed(self.axes)


class DividedTwice(Traced):
    """An axis cannot be divided in two ways at once.

    Where a dimension has fewer positions than an axis has devices, the rest of the axis cuts the dimension inside of
    it: with tp = 4 and two heads of keys, `split model by heads into tp` cuts `heads` by 2 and `heads_per_group` by 2,
    and the compiler has two axes in place of `tp`. With layers of two and of three heads of keys and tp = 6, the axis
    would have to be 2 times 3 and 3 times 2, and no two axes are both.
    """

    code = "E0294"
    title = "no axes in place of `{axis}` = {size} divide both {one} and {other}"
    note = "`{one.path}` has the first, `{other.path}` the second"
    help = "write it as several axes of the mesh, and split each dimension by those that divide it"
    axis: str
    size: int
    one: Short
    other: Short
