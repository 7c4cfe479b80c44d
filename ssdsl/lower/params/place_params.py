"""Places weights and buffers: the submesh and layout of each, and the axes along which its gradient is partial."""

from collections.abc import Hashable, Iterator, Mapping

from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Placement, Shape, Shard, Submesh
from ssdsl.ir.param import Param
from ssdsl.lower.errors import BufferApart, PlacedOperator, ShardConflict
from ssdsl.lower.stages import Segmented, Stored, grown
from ssdsl.model.evaluation_errors import WeightElsewhere
from ssdsl.model.graph import Graph, Origin
from ssdsl.plan.plan import State, StateShard
from ssdsl.plan.regions import innermost, nests
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

Use = tuple[Layout, Layout]  # the layouts in which an operator needs a weight, and leaves its gradient
Written = tuple[Shape, tuple[Shard, ...]]  # the factors of a buffer's new value, and its parts in time


def place_params(lowering: Segmented) -> Stored:
    """Adds the parameters, one for each submesh that uses a weight.

    Of two replicas:

        + param layers.0.0.weight on gpus : f32[8, 4]; gradient partial {dp: sum}

    Raises PlanError if a statement cuts no state, or if an evaluation reads a weight on a submesh on which training has
    none.
    """
    uses: dict[str, dict[Submesh, list[Use]]] = {}
    known: dict[tuple[int, int], Use] = {}  # by the number of a typed call, and of its operand
    shapes: dict[str, Shape] = {}
    written: dict[str, Written] = {}
    stored = {v.name for v in lowering.graph.values.values() if v.origin in (Origin.WEIGHT, Origin.BUFFER)}
    updates = {value: buffer for buffer, value in lowering.graph.updates.items()}
    for segment in lowering.segments:
        for operator in segment.operators:
            typed = lowering.typed[operator.name]
            for number, operand in enumerate(operator.inputs):
                if operand.value in stored:
                    read, key = typed.reads[number], (typed.number, number)
                    if key not in known:
                        known[key] = read.type.layout.stored(read.shape), read.gradient.layout
                    uses.setdefault(operand.value, {}).setdefault(segment.submesh, []).append(known[key])
                    shapes[operand.value] = read.shape
            for operand, left in zip(operator.outputs, typed.results, strict=True) if updates else ():
                if (buffer := updates.get(operand.value)) is not None:  # a buffer lives, whole, where it is written
                    uses.setdefault(buffer, {}).setdefault(segment.submesh, [])
                    shapes[buffer] = Shape(lowering.graph.values[buffer].sizes)
                    written[buffer] = left.shape, tuple(digit for _, digit in left.type.time)
    for buffer, users in lowering.graph.users_of_changed.items():
        _check_together(lowering, buffer, users)
    if not lowering.trains:
        return grown(lowering, Stored, params=_held(lowering, uses))
    placing = _Placing(lowering)
    params = [p for w, found in uses.items() for p in placing.of(w, shapes[w], found, written.get(w))]
    here = {(p.weight, p.submesh) for p in params}
    others = (p for p in lowering.held.params if p.trained and (p.weight, p.submesh) not in here)
    params += [_as_here(replace(p, partial=()), lowering.graph) for p in others]
    if not lowering.held.params:
        check_shards(lowering.plan.state.shards, params)
    return grown(lowering, Stored, params=tuple(map(placing.in_parts, params)))


def _held(lowering: Segmented, uses: dict[str, dict[Submesh, list[Use]]]) -> tuple[Param, ...]:
    """The parameters of the program that trains, with the factors that their axes have in this graph. Raises PlanError
    for a weight that is read on a submesh on which that program does not have it."""
    homes = {(p.weight, p.submesh) for p in lowering.held.params}
    missing = [(w, s) for w, found in uses.items() for s in found if (w, s) not in homes]
    if missing:
        known = {p.weight: p.submesh for p in reversed(lowering.held.params)}
        raise PlanError(*(WeightElsewhere(None, w, str(s), str(known.get(w, "no device"))) for w, s in missing))
    return tuple(_as_here(p, lowering.graph) for p in lowering.held.params)


def _as_here(param: Param, graph: Graph) -> Param:
    shape = Shape(graph.values[param.weight].sizes) if param.weight in graph.values else param.shape
    layout = param.layout.refactored(param.shape, shape)
    return param if layout is None else replace(param, shape=shape, layout=layout)


class _Placing:
    """The layouts of weights: weights with equal uses share one layout object."""

    def __init__(self, lowering: Segmented) -> None:
        self.lowering = lowering
        self.held: dict[str, dict[Submesh, Layout]] = {}
        for p in lowering.held.params:
            self.held.setdefault(p.weight, {})[p.submesh] = p.layout
        self.known: dict[Hashable, list[tuple[Layout, tuple[str, ...]]]] = {}
        self.unreached = lowering.unreached
        shards = (s for s in lowering.plan.state.shards if s.state is State.WEIGHTS)
        self.cut = {weight: shard.axes for shard in shards for weight in shard.weights}

    def of(self, weight: str, shape: Shape, uses: dict[Submesh, list[Use]], written: Written | None) -> Iterator[Param]:
        """The parameters of a weight, whose submeshes are disjoint (`rewrite/share_weights.py`)."""
        held = self.held.get(weight, {})
        key = tuple([(s, *map(id, found)) for s, found in uses.items()]), tuple(held.items()), written
        if (alike := self.known.get(key)) is None:
            alike = self.known[key] = list(_placed(uses, held, shape, written))
        value, lowering = self.lowering.graph.values[weight], self.lowering
        is_unreached = weight in self.unreached
        trained = value.origin is Origin.WEIGHT and (weight in lowering.learning or is_unreached)
        for submesh, (layout, partial) in zip(uses, alike, strict=True):
            yield Param(weight, submesh, shape, layout, () if is_unreached else partial, trained, value.dtype)

    def in_parts(self, param: Param) -> Param:
        """The parameter, in the parts in which a statement stores a weight that is not trained."""
        is_frozen = not param.trained and self.lowering.graph.values[param.weight].origin is Origin.WEIGHT
        cut = self.cut.get(param.weight, ()) if is_frozen and param.weight not in self.held else ()
        return _in_parts(param, cut) if cut else param


def check_shards(shards: tuple[StateShard, ...], params: list[Param]) -> None:
    """Raises PlanError where a statement cuts the state of no weight over one of its axes."""
    for shard in shards:
        those = [p for p in params if p.weight in shard.weights]
        axes = {a: n for p in those for a, n in p.submesh.mesh.axes}
        wholes = [p.copied for p in those]
        for axis in shard.axes:
            if those and axes.get(axis) != 1 and not any(axis in whole for whole in wholes):
                left = tuple(a for a in shard.axes if axes.get(a) == 1 or any(a in whole for whole in wholes))
                several = tuple(a for a in wholes[0] if axes[a] > 1)
                conflict = ShardConflict(shard.span, shard.state.value, those[0].weight, axis, several, left)
                raise PlanError(conflict)


def _in_parts(param: Param, axes: tuple[str, ...]) -> Param:
    """A weight that is not trained, with a part of it on each device along the axes: it has no other state. Along an
    axis whose devices divide none of its factors it stays whole."""
    names, ways = [name for name, _ in param.submesh.axes], dict(param.submesh.axes)
    for axis in param.cut_over(axes):
        if (part := _part(param, ways[axis])) is not None:
            layout = param.layout.replacing(names.index(axis), part)
            param = replace(param, layout=layout, partial=tuple(other for other in param.partial if other != axis))
    return param


def _part(param: Param, ways: int) -> Shard | None:
    """A digit that cuts a weight once more into so many parts, inside of those that it has: of the first factor that
    they divide."""
    for factor, size in enumerate(param.shape.factors):
        held = (s.digit for s in param.layout.shards() if s.factor == factor)
        if (digit := innermost(held, size, ways)) is not None:
            return Shard(factor, digit)
    return None


def _placed(
    uses: dict[Submesh, list[Use]], held: Mapping[Submesh, Layout], shape: Shape, written: Written | None
) -> Iterator[tuple[Layout, tuple[str, ...]]]:
    """Yields for each submesh the layout, and the axes along which gradients are sums. Along an axis on which all uses
    agree, the layout is theirs; elsewhere the weight is replicated, and each use takes its part. So it is, too, where a
    device would have no place for a part that is written."""
    alike = len({s.axes for s in uses}) == 1
    needs = [need.places for found in uses.values() for need, _ in found]
    for submesh, found in uses.items():
        places: tuple[Placement, ...] = (REPLICATE,) * len(submesh.axes)
        if submesh in held:
            places = held[submesh].places
        elif alike and needs:
            alike_uses = (p[0] if len(set(p)) == 1 else REPLICATE for p in zip(*needs, strict=True))
            places = tuple(p if _holds(p, written, shape) else REPLICATE for p in alike_uses)
        partial = tuple(
            axis
            for at, (axis, _) in enumerate(submesh.axes)
            if not isinstance(places[at], Shard) and any(gradient.places[at] is PARTIAL for _, gradient in found)
        )
        yield Layout(places), partial


def _holds(place: Placement, written: Written | None, shape: Shape) -> bool:
    """Whether a device can hold its part of what is written: the new value, which may have other factors than the
    buffer, can be cut so, and a device has a share of each of the parts in time: none cuts the same positions.

    >>> from ssdsl.plan.regions import Digit
    >>> rows, halves = Shape(((8,),)), Shard(0, Digit(2, 4))
    >>> _holds(Shard(0, Digit(2, 2)), (rows, (halves,)), rows), _holds(halves, (rows, (halves,)), rows)
    (True, False)
    >>> _holds(Shard(0, Digit(4, 2)), (Shape(((2, 4),)), ()), rows)
    False
    """
    if not isinstance(place, Shard) or written is None:
        return True
    made, parts = written
    if (layout := Layout((place,)).refactored(shape, made)) is None:
        return False
    (shard,) = layout.shards()
    return all(nests((shard.digit, s.digit), made.factors[s.factor]) for s in parts if s.factor == shard.factor)


def _check_together(lowering: Segmented, buffer: str, users: list[str]) -> None:
    """Raises PlanError where the operators that read or change a buffer are on several submeshes."""
    found = {lowering.submeshes[name]: name for name in reversed(users) if name in lowering.submeshes}
    if len(found) > 1:
        names = [*reversed(found.values())][:2]
        first, second = (PlacedOperator.of(lowering.plan, lowering.graph.by_name[name]) for name in names)
        raise PlanError(BufferApart(first.span, buffer, first, second))
