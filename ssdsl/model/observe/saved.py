"""Measures the tensors that autograd saves of a call: torch runs it on fake tensors, and hooks get the saved ones.

It runs with the sizes of one device as on a CPU. If meta tensors are saved in the same way, they serve for all other
sizes, as they are faster. It runs with two sets of sizes in which all dimensions differ. A saved tensor's axes
are those of operands that have the same sizes in both sets. If an axis has size 1, other tensors may be views, so each
axis that can be cut is tried with size 1.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ssdsl.model.graph import Graph, Operator, numbered
from ssdsl.model.memory.observed import ExtraShape, Place, SavedByParts, SavedShapes
from ssdsl.model.memory.storage import strides_in
from ssdsl.model.observe.call import Shape, TensorSpec, fake_tensors, filled, learns, memory_of, run, run_saving
from ssdsl.model.observe.kernel import RecordingGroup, run_kernel, words_of
from ssdsl.model.ops.op import PartKernel
from ssdsl.model.ops.reader import Reader, grouping
from ssdsl.model.ops.registry import is_own
from ssdsl.record import Record, replace

# With distinct primes as sizes, a product of axes tells which axes it is of: 11 x 17 is no other product.
PARTS = (109, 113)  # the numbers of parts, in the same two sets of sizes
PRIMES = ((11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53), (59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107))
Sizes = Mapping[int, int]  # of dimensions, where they are not those of one device


class ExtraSaved(Record):
    """A saved tensor that is neither operand nor result, or one that a kernel sends: the bytes of its memory, and its
    shape; that of its memory, if it is a view."""

    size_bytes: int
    shape: Shape
    dtype: torch.dtype


class SavedMeasurement(Record):
    """The numbers of inputs and outputs that autograd keeps, the other tensors that it keeps, the shapes of all inputs
    and outputs, and the tensors that a kernel of parts sends in forward and backward; the last shape is then the number
    of parts."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    others: tuple[ExtraSaved, ...]
    shapes: tuple[Shape, ...]
    forward: tuple[ExtraSaved, ...] = ()
    backward: tuple[ExtraSaved, ...] = ()


_KNOWN: dict[Any, SavedMeasurement] = {}  # of torch's own operators, by all that decides what is measured
Measure = Callable[[Sequence[int], int], SavedMeasurement]  # for sizes of dimensions, and a number of parts


def saved_by(
    operator: Operator, graph: Graph, sizes: Sequence[int] | None = None, kernel: PartKernel | None = None
) -> SavedShapes:
    """The tensors that a call, or its kernel of parts, saves with these sizes of its dimensions, by default those of
    one device. A user's operator that does not run on fake tensors is taken to save all its inputs and outputs."""
    reader = Reader(operator, graph, _whole(operator) if sizes is None else sizes)
    parts = reader.parts(*kernel.axes) if kernel else 1
    return _exactly(_attempt(operator, partial(_measured, operator, graph, kernel, reader.sizes, parts)), operator)


def saved_whole_and_by_parts(operator: Operator, graph: Graph) -> tuple[SavedShapes, SavedByParts | None]:
    """The tensors that a call saves on one device, as `saved_by`, and those that parts of it save; None if the
    measurements do not show these."""
    measure, whole = partial(_measured, operator, graph, None), _whole(operator)
    on_cpu = _attempt(operator, partial(measure, whole, 1))
    if on_cpu is None:
        return _exactly(None, operator), None
    if _on_meta(partial(measure, whole, 1)) == on_cpu:
        measure = partial(measure, like_cpu=False)
    return _exactly(on_cpu, operator), _by_parts(operator, measure, on_cpu)


def saved_by_kernel(operator: Operator, graph: Graph, kernel: PartKernel) -> SavedByParts | None:
    """The tensors that a kernel of parts saves and sends; None if the measurements do not show it."""
    return _by_parts(operator, partial(_measured, operator, graph, kernel), None)


def _whole(operator: Operator) -> list[int]:
    return [d.size for d in operator.dims]


def _attempt(operator: Operator, measure: Callable[[], SavedMeasurement]) -> SavedMeasurement | None:
    """The measurement; None if a user's operator does not run on fake tensors."""
    try:
        return measure()
    except Exception:  # an operator may raise anything
        if is_own(operator.row):
            raise
        return None


def _exactly(found: SavedMeasurement | None, operator: Operator) -> SavedShapes:
    """The tensors of a measurement, for its sizes alone; all inputs and outputs if there is none."""
    if found is None:
        return SavedShapes(tuple(range(len(operator.inputs))), tuple(range(len(operator.outputs))))
    return _shapes(found, operator, lambda kept: (kept.size_bytes, ()))


def _by_parts(operator: Operator, measure: Measure, on_cpu: SavedMeasurement | None) -> SavedByParts | None:
    """The tensors that parts save, by a rule under which the whole call saves what it was seen to save on a CPU; None
    if the measurements show no such rule."""
    try:
        for held in ((), *_holdable(operator)):
            sizes = {h.dim: h.size for h in held}
            found = _fitted(operator, measure, sizes)
            if found is not None and (on_cpu is None or _agree(found, on_cpu, operator)):
                places = tuple((h.place, h.size) for h in held)
                return SavedByParts(found, tuple(_of_one(operator, measure, found, sizes)), places)
    except Exception:  # an operator may raise anything
        return None
    return None


def _on_meta(measure: Callable[..., SavedMeasurement]) -> SavedMeasurement | None:
    """The measurement with meta tensors; None if the operator does not take these."""
    try:
        return measure(like_cpu=False)
    except Exception:  # an operator may raise anything
        return None


class _Held(NamedTuple):
    """A dimension that keeps the size that it has on one device, and where to see it."""

    dim: int
    place: Place
    size: int


def _holdable(operator: Operator) -> Iterator[tuple[_Held]]:
    """Yields each dimension that is as long as a fixed one: attention on a CPU is one kernel only if values have as
    many features as queries, which cannot be cut."""
    fixed = {dim.size for dim in operator.dims if dim.fixed}
    for place, dims in _axes(operator).items():
        dim = operator.dims[dims[0]]
        if len(dims) == 1 and not dim.fixed and dim.size in fixed:
            yield (_Held(dims[0], place, dim.size),)


def _of_one(
    operator: Operator, measure: Measure, found: SavedShapes, held: Sizes
) -> Iterator[tuple[tuple[Place, ...], SavedShapes]]:
    """Axes of size 1 with which other tensors are saved, and these. Raises LookupError if they cannot be found."""
    for places, dims in _ones(operator):
        if not held.keys().isdisjoint(dims):
            continue
        ones = {**held, **dict.fromkeys(dims, 1)}
        try:
            measured = measure(_apart(operator, 0, ones), PARTS[0])
        except Exception:  # the operator does not take this size, so no part has it
            continue
        if not _agree(found, measured, operator):
            other = _fitted(operator, measure, ones)
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


def _fitted(operator: Operator, measure: Measure, given: Sizes) -> SavedShapes | None:
    """The saved tensors, if they are the same function of both sets of sizes; else None."""
    first, second = (measure(_apart(operator, which, given), PARTS[which]) for which in (0, 1))
    found = _shapes(first, operator, lambda kept: _shape(kept, first.shapes))
    return found if _agree(found, second, operator) else None


def _shapes(
    found: SavedMeasurement, operator: Operator, shape: Callable[[ExtraSaved], tuple[int, tuple[Place, ...]]]
) -> SavedShapes:
    """The tensors that were measured, with these sizes."""
    return SavedShapes(
        _inputs(found, operator),
        found.outputs,
        tuple(_labelled(shape(kept), kept, found) for kept in found.others),
        *(tuple(ExtraShape("all_reduce", *shape(x)) for x in sent) for sent in (found.forward, found.backward)),
    )


def _shape(kept: ExtraSaved, shapes: Sequence[Shape]) -> tuple[int, tuple[Place, ...]]:
    """A saved tensor's size as bytes times axes of operands: one for each of its axes, or several that it joins. An
    axis with the size of none is a constant factor of the bytes."""
    axes: list[Place] = []
    rest = kept.size_bytes // max(1, math.prod(kept.shape))
    for size in kept.shape:
        of = next((p for p in _products(shapes) if math.prod(shapes[o][a] for o, a in p) == size), ())
        if size > 1 and of:
            axes += of
        else:
            rest *= size
    return rest, tuple(axes)


def _products(shapes: Sequence[Shape]) -> Iterator[tuple[Place, ...]]:
    """Single axes, then pairs of axes of one operand and the last one, up to four."""
    last = len(shapes) - 1
    for count in (1, 2, 3, 4):
        for number in range(len(shapes)):
            places = [(n, axis) for n in dict.fromkeys((number, last)) for axis in range(len(shapes[n]))]
            yield from itertools.combinations(places, count)


def _labelled(shape: tuple[int, tuple[Place, ...]], kept: ExtraSaved, among: SavedMeasurement) -> ExtraShape:
    """A saved tensor with a name for reports: "mask" for truth values; else "copy", if it has as many elements as an
    operand or result."""
    is_copy = math.prod(kept.shape) in {math.prod(s) for s in among.shapes}
    return ExtraShape("mask" if kept.dtype is torch.bool else "copy" if is_copy else "intermediate", *shape)


def _inputs(found: SavedMeasurement, operator: Operator) -> tuple[int, ...]:
    """The numbers of the inputs that are kept, each value once."""
    first = {operator.inputs[i].value: i for i in reversed(found.inputs)}
    return tuple(sorted(first.values(), key=found.inputs.index))


def _agree(shapes: SavedShapes, found: SavedMeasurement, operator: Operator) -> bool:
    """Whether the shapes predict a measurement."""
    names = [o.value for o in operator.inputs]
    sent = [[e.bytes_at(found.shapes) for e in said] for said in (shapes.forward, shapes.backward)]
    extras = sorted(e.bytes_at(found.shapes) for e in shapes.extras)
    said = {names[i] for i in shapes.inputs}, set(shapes.outputs), extras
    kept = {names[i] for i in found.inputs}, set(found.outputs), sorted(k.size_bytes for k in found.others)
    return said == kept and sent == [[x.size_bytes for x in said] for said in (found.forward, found.backward)]


# -- one measurement ---------------------------------------------------------------------------------------------------


def _measured(
    operator: Operator,
    graph: Graph,
    kernel: PartKernel | None,
    sizes: Sequence[int],
    parts: int,
    *,
    like_cpu: bool = True,
) -> SavedMeasurement:
    """The tensors that autograd saves of a call whose dimensions have these sizes, or of its kernel on one of so many
    parts, and the collectives of the kernel."""
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
    target, *rest = numbered(operator.args, refs)
    args, kwargs = tuple(rest), numbered(operator.kwargs, refs)
    group = None if kernel is None else RecordingGroup(parts)
    if kernel is not None:
        words = target.bound(args, dict(kwargs)) | words_of(kernel, reader, parts)
        how: tuple[Any, ...] = kernel, *words.items()
    else:
        is_whole = not any(map(reader.is_split, range(len(operator.dims))))
        args = args if is_whole else _local(operator, args, tuple(reader.shape(o.axes) for o in operator.outputs))
        how = like_cpu, args, kwargs
    types = tuple(graph.values[o.value].dtype for o in operator.outputs)
    key = target, how, types, tuple(specs), tuple(numbers)

    def call(tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
        if kernel is None:
            return run(target, args, kwargs, tensors)
        return run_kernel(kernel, filled(words, tensors) | {"group": group})

    known = _KNOWN if target.name.startswith("aten::") else {}
    if key not in known:
        # on meta tensors a kernel does not look for indices out of range
        with fake_tensors(target, like_cpu=like_cpu and kernel is None):
            known[key] = _kept(call, specs, numbers, group)
    return known[key]


def _kept(
    call: Callable[[Mapping[str, torch.Tensor]], tuple[Any, ...]],
    specs: Sequence[TensorSpec],
    numbers: Sequence[int],
    group: RecordingGroup | None = None,
) -> SavedMeasurement:
    """Runs a call; `"0"` is the name of the tensor like the first of `specs`, `numbers` has that of each input. A call
    among parts also runs backward."""
    given = [s.empty() for s in specs]
    results, kept = run_saving(call, given)
    own = {memory_of(t): i for i, t in reversed(list(enumerate(given)))}
    made = {memory_of(t): i for i, t in reversed(list(enumerate(results))) if isinstance(t, torch.Tensor)}
    others = (t for m, t in kept.items() if m not in own and m not in made)
    shapes = (*(specs[n].shape for n in numbers), *(tuple(t.shape) for t in results if isinstance(t, torch.Tensor)))
    found = SavedMeasurement(
        tuple(numbers.index(own[m]) for m in kept if m in own),
        tuple(made[m] for m in kept if m in made and m not in own),
        tuple(_kept_tensor(t) for t in others),
        shapes,
    )
    if group is None:
        return found
    forward = group.sent.copy()
    if ends := [t for t in results if t.requires_grad]:
        torch.autograd.backward(ends, [torch.empty_like(t) for t in ends])
    before, after = (tuple(map(_kept_tensor, each)) for each in (forward, group.sent[len(forward) :]))
    return replace(found, shapes=(*shapes, (group.size,)), forward=before, backward=after)


def _kept_tensor(tensor: torch.Tensor) -> ExtraSaved:
    size, each = tensor.untyped_storage().nbytes(), tensor.element_size()
    return ExtraSaved(size, tuple(tensor.shape) if size == tensor.numel() * each else (size // each,), tensor.dtype)


def _local(operator: Operator, args: tuple[Any, ...], outputs: tuple[Shape, ...]) -> tuple[Any, ...]:
    """The arguments of a part's call: sizes of results, and numbers of groups in them, become local ones."""
    if (groups := grouping(operator)) is not None:
        count = outputs[0][groups.axis] // groups.size
        return (*args[: groups.position], count, *args[groups.position + 1 :])
    match operator.target:
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
