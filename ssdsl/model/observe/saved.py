"""Measures the tensors that autograd saves of a call: torch runs it on fake tensors, and hooks get the saved ones.

It runs with the sizes of one device, and with two sets of sizes in which all dimensions differ. A saved tensor's axes
are those of operands that have the same sizes in both sets. If an axis has size 1, other tensors may be views, so each
axis that can be cut is tried with size 1.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssdsl.model.graph import Graph, Operator, numbered
from ssdsl.model.memory.observed import ExtraShape, Place, SavedByParts, SavedShapes
from ssdsl.model.memory.storage import strides_in
from ssdsl.model.observe.call import Shape, TensorSpec, learns, memory_of, run
from ssdsl.model.ops.reader import Reader
from ssdsl.model.target import Target

# With distinct primes as sizes, a product of axes tells which axes it is of: 11 x 17 is no other product.
PRIMES = ((11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53), (59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107))
Sizes = Mapping[int, int]  # of dimensions, where they are not those of one device


@dataclass(frozen=True, slots=True)
class ExtraSaved:
    """A saved tensor that is neither operand nor result: the bytes of its memory, its shape, and the bytes of that
    shape, which are fewer if it is a view."""

    size_bytes: int
    shape: Shape
    shape_bytes: int


@dataclass(frozen=True, slots=True)
class SavedMeasurement:
    """The numbers of inputs and outputs that autograd keeps, the other tensors that it keeps, and the shapes of all
    inputs and outputs."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    others: tuple[ExtraSaved, ...]
    shapes: tuple[Shape, ...]


def saved_by(operator: Operator, graph: Graph, sizes: Sequence[int] | None = None) -> SavedShapes:
    """The tensors that a call saves with these sizes of its dimensions, by default those of one device. An operator
    without a row that does not run on fake tensors is taken to save all its inputs and outputs."""
    try:
        found = _measured(operator, graph, [d.size for d in operator.dims] if sizes is None else sizes)
    except Exception:  # an operator may raise anything
        if operator.found is None:
            raise
        return SavedShapes(tuple(range(len(operator.inputs))), tuple(range(len(operator.outputs))))
    extras = (_labelled((k.size_bytes, ()), k, found) for k in found.others)
    return SavedShapes(_inputs(found, operator), found.outputs, tuple(extras))


def saved_by_parts(operator: Operator, graph: Graph) -> SavedByParts | None:
    """The tensors that parts of a call save; None if the measurements do not show it."""
    try:
        whole = _measured(operator, graph, [d.size for d in operator.dims])
        found = _fitted(operator, graph, {})
        if found is None or not _agree(found, whole, operator):
            return None
        return SavedByParts(found, tuple(_of_one(operator, graph, found)))
    except Exception:  # an operator may raise anything
        return None


def _of_one(operator: Operator, graph: Graph, found: SavedShapes) -> Iterator[tuple[tuple[Place, ...], SavedShapes]]:
    """Axes of size 1 with which other tensors are saved, and these. Raises LookupError if they cannot be found."""
    for places, dims in _ones(operator):
        ones = dict.fromkeys(dims, 1)
        try:
            measured = _measured(operator, graph, _apart(operator, 0, ones))
        except Exception:  # the operator does not take this size, so no part has it
            continue
        if not _agree(found, measured, operator):
            other = _fitted(operator, graph, ones)
            if other is None:
                raise LookupError(places)
            yield places, other


def _ones(operator: Operator) -> Iterator[tuple[tuple[Place, ...], tuple[int, ...]]]:
    """Axes to try with size 1: each alone, and pairs of axes that are both missing from some input, which is then
    repeated along both."""
    axes = {
        (place,): dims
        for place, dims in _axes(operator).items()
        if not any(operator.dims[d].fixed and operator.dims[d].size > 1 for d in dims)
    }
    yield from axes.items()
    given = [{d for axis in operand.axes for d in axis} for operand in operator.inputs]
    for (first, dims), (second, others) in itertools.combinations(axes.items(), 2):
        if any(known.isdisjoint((*dims, *others)) for known in given):
            yield first + second, dims + others


def _axes(operator: Operator) -> dict[Place, tuple[int, ...]]:
    """The axes that can be cut, one for each group of dimensions."""
    found: dict[tuple[int, ...], Place] = {}
    for number, operand in enumerate((*operator.inputs, *operator.outputs)):
        for axis, dims in enumerate(operand.axes):
            if any(not operator.dims[d].fixed for d in dims):
                found.setdefault(dims, (number, axis))
    return {place: dims for dims, place in found.items()}


# -- shapes from measurements ------------------------------------------------------------------------------------------


def _apart(operator: Operator, which: int, given: Sizes) -> list[int]:
    """Different primes as sizes of the dimensions; those with windows get longer, fixed ones keep their sizes."""
    primes = iter(PRIMES[which])
    sizes = []
    for number, dim in enumerate(operator.dims):
        if number in given:
            sizes.append(given[number])
        elif dim.window is not None:
            sizes.append(dim.size + next(primes))
        else:
            sizes.append(dim.size if dim.fixed else next(primes))
    return sizes


def _fitted(operator: Operator, graph: Graph, given: Sizes) -> SavedShapes | None:
    """The saved tensors, if they are the same function of both sets of sizes; else None."""
    first, second = (_measured(operator, graph, _apart(operator, which, given)) for which in (0, 1))
    free = {(n, a) for n, o in enumerate((*operator.inputs, *operator.outputs)) for a in range(len(o.axes))}
    extras = tuple(_shape(kept, first.shapes, sorted(free)) for kept in first.others)
    labelled = tuple(_labelled(e, kept, first) for e, kept in zip(extras, first.others, strict=True))
    found = SavedShapes(_inputs(first, operator), first.outputs, labelled)
    return found if _agree(found, second, operator) else None


def _shape(kept: ExtraSaved, shapes: Sequence[Shape], places: Sequence[Place]) -> tuple[int, tuple[Place, ...]]:
    """A saved tensor's size as bytes times axes of operands: one for each of its axes, or several that it joins. An
    axis with the size of none is a constant factor of the bytes."""
    if kept.shape_bytes != kept.size_bytes:
        return kept.size_bytes, ()
    axes: list[Place] = []
    rest = kept.size_bytes // max(1, math.prod(kept.shape))
    for size in kept.shape:
        of = next((p for p in _products(shapes, places) if math.prod(shapes[o][a] for o, a in p) == size), ())
        if size > 1 and of:
            axes += of
        else:
            rest *= size
    return rest, tuple(axes)


def _products(shapes: Sequence[Shape], places: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """Single axes, then pairs of axes of one operand, up to four."""
    for count in (1, 2, 3, 4):
        for number in range(len(shapes)):
            yield from itertools.combinations([p for p in places if p[0] == number], count)


def _labelled(shape: tuple[int, tuple[Place, ...]], kept: ExtraSaved, among: SavedMeasurement) -> ExtraShape:
    """A saved tensor with a name for reports: "copy", if it has as many elements as an operand or result."""
    elements = kept.size_bytes // max(1, kept.shape_bytes // max(1, math.prod(kept.shape)))
    is_copy = elements in {math.prod(s) for s in among.shapes}
    return ExtraShape("copy" if is_copy else "intermediate", *shape)


def _inputs(found: SavedMeasurement, operator: Operator) -> tuple[int, ...]:
    """The numbers of the inputs that are kept, each value once."""
    first = {operator.inputs[i].value: i for i in reversed(found.inputs)}
    return tuple(sorted(first.values(), key=found.inputs.index))


def _agree(shapes: SavedShapes, found: SavedMeasurement, operator: Operator) -> bool:
    """Whether the shapes predict a measurement."""
    names = [o.value for o in operator.inputs]
    said = [e.size_bytes * math.prod(found.shapes[o][a] for o, a in e.axes) for e in shapes.extras]
    kept = {names[i] for i in found.inputs}, set(found.outputs), sorted(k.size_bytes for k in found.others)
    return ({names[i] for i in shapes.inputs}, set(shapes.outputs), sorted(said)) == kept


# -- one measurement ---------------------------------------------------------------------------------------------------


def _measured(operator: Operator, graph: Graph, sizes: Sequence[int]) -> SavedMeasurement:
    """The tensors that autograd saves of a call whose dimensions have these sizes."""
    reader = Reader(operator, graph, sizes)
    shapes = [reader.shape(o.axes) for o in operator.inputs]
    kinds = dict.fromkeys((o.value, s) for o, s in zip(operator.inputs, shapes, strict=True))
    order = {kind: number for number, kind in enumerate(kinds)}  # a value may be read in two parts
    numbers = [order[o.value, s] for o, s in zip(operator.inputs, shapes, strict=True)]
    orders = dict(zip(operator.refs(), operator.orders, strict=False))
    specs = []
    for value, shape in kinds:
        operand = operator.inputs[numbers.index(order[value, shape])]
        lies = orders.get(value)
        strides = reader.strides(operand) if lies is None else strides_in(lies, shape)
        specs.append(TensorSpec(shape, strides, graph.values[value].dtype, learns(graph.values[value])))
    refs = iter(numbers)
    target, *args = numbered(operator.args, refs)
    made = tuple(reader.shape(o.axes) for o in operator.outputs)
    is_whole = not any(map(reader.is_split, range(len(operator.dims))))
    arguments = tuple(args) if is_whole else _local(target, tuple(args), made)
    return _kept(target, arguments, numbered(operator.kwargs, refs), specs, numbers)


def _kept(
    target: Target,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    specs: Sequence[TensorSpec],
    numbers: Sequence[int],
) -> SavedMeasurement:
    """Runs a call; `Ref("0")` in the arguments stands for the first of `specs`, `numbers` has that of each input."""
    given = [s.empty() for s in specs]
    kept: dict[int, torch.Tensor] = {}  # by the memory, so that views of one tensor count once

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(memory_of(tensor), tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = run(target, args, kwargs, {str(i): t for i, t in enumerate(given)})
    own = {memory_of(t): i for i, t in reversed(list(enumerate(given)))}
    made = {memory_of(t): i for i, t in reversed(list(enumerate(results))) if isinstance(t, torch.Tensor)}
    others = (t for m, t in kept.items() if m not in own and m not in made)
    shapes = (*(specs[n].shape for n in numbers), *(tuple(t.shape) for t in results if isinstance(t, torch.Tensor)))
    return SavedMeasurement(
        tuple(numbers.index(own[m]) for m in kept if m in own),
        tuple(made[m] for m in kept if m in made and m not in own),
        tuple(_kept_tensor(t) for t in others),
        shapes,
    )


def _kept_tensor(tensor: torch.Tensor) -> ExtraSaved:
    return ExtraSaved(tensor.untyped_storage().nbytes(), tuple(tensor.shape), tensor.numel() * tensor.element_size())


def _local(target: Target, args: tuple[Any, ...], outputs: tuple[Shape, ...]) -> tuple[Any, ...]:
    """The arguments of a part's call: sizes of results become local sizes."""
    match target.name:
        case "aten::reshape" | "aten::expand":
            return (args[0], outputs[0], *args[2:])
        case "aten::split.Tensor":
            at = int(args[2]) if len(args) > 2 else 0
            return (args[0], outputs[0][at], *args[2:])
        case "aten::split_with_sizes":
            at = int(args[2]) if len(args) > 2 else 0
            return (args[0], tuple(shape[at] for shape in outputs), *args[2:])
        case "aten::layer_norm" | "aten::rms_norm":
            return (args[0], outputs[0][-len(args[1]) :], *args[2:])
    return args
