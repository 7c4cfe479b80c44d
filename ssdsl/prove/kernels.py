"""Which kernel a part of an operator needs, and where it begins: derived from the digits that its splits fix."""

import math
from dataclasses import dataclass

from ssdsl.ir.function import Kernel, Op, Split, WindowPart
from ssdsl.ir.value import Axis, Coordinate
from ssdsl.model.graph import Operand, Operator
from ssdsl.model.ops.reader import argument, parameters
from ssdsl.model.ops.registry import row
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.operators import combining
from ssdsl.prove.windows import is_inside, part_function, parts_of

Offsets = dict[Coordinate, tuple[int, tuple[int, ...] | None]]  # per coordinate: elements per part, or the parts' sizes


@dataclass(frozen=True, slots=True)
class Adding:
    """A function of which parts add up: what the part has not, of an axis of an operand, counts as zeros."""

    function: str
    operand: int
    axis: int | str  # or the argument that says it


ADDING = {
    "aten::embedding": Adding("embedding_part", 0, 0),
    "aten::gather": Adding("gather_part", 0, "dim"),
    "aten::nll_loss_nd": Adding("nll_part", 0, 1),
    "ssdsl::routed_mm": Adding("routed_mm", 1, 0),
}


def check_kernel(operator: Operator, op: Op) -> None:
    """Raises Wrong unless the kernel is the one that computes this part."""
    splits = [s for s in op.splits if isinstance(s, Split)]
    function, axes, offsets = _wanted(operator, splits)
    kernel = op.kernel
    if (windows := _windows(operator, splits)) or kernel.windows:
        function = part_function(operator) or "a kernel that does not exist"
        of = {d.window.of for d in operator.dims if d.window is not None}
        inside = (s for s in splits if s.dim in of and s.also is None and is_inside(operator, s))
        offsets = {s.coordinate: (s.stride, None) for s in inside}
        if set(kernel.windows) != windows or len(kernel.windows) != len(windows):
            raise Wrong(Rule.KERNEL, sorted(map(str, windows)), sorted(map(str, kernel.windows)))
    found: Offsets = {o.coordinate: (o.stride, o.sizes) for o in kernel.offsets}
    once = len(found) == len(kernel.offsets) and len(set(kernel.axes)) == len(kernel.axes)
    if (kernel.function, set(kernel.axes), found) != (function, axes, offsets) or not once:
        raise Wrong(Rule.KERNEL, _words(function, axes, offsets), _words(kernel.function, set(kernel.axes), found))


def _windows(operator: Operator, splits: list[Split]) -> set[WindowPart]:
    """The axes of which a part reads windows."""
    found = set()
    for number, dim in enumerate(operator.dims):
        for split in splits:
            is_read = dim.window is not None and dim.window.of == split.dim and number != split.also
            if is_read and not is_inside(operator, split):
                axis = next(a for o in operator.inputs for a, dims in enumerate(o.axes) if number in dims)
                results, needs = zip(*parts_of(operator, split, number), strict=True)
                found.add(WindowPart(split.coordinate, axis, results, needs, dim.size))
    return found


def check_first(operator: Operator, op: Op) -> None:
    """Raises Wrong unless the addend of a sum is added by the first part along every coordinate that is summed."""
    addend = any(o.once for o in operator.inputs)
    wanted = [s.coordinate for s in op.splits if isinstance(s, Split) and operator.summed(s.dim)] if addend else []
    if sorted(map(str, op.first)) != sorted(map(str, wanted)):
        raise Wrong(Rule.FIRST, [c.name for c in wanted], [c.name for c in op.first])


def _wanted(operator: Operator, splits: list[Split]) -> tuple[str, set[str], Offsets]:
    combined = [s for s in splits if any(operator.dims[d].combined for d in s.dims)]
    axes = {s.coordinate.name for s in combined if isinstance(s.coordinate, Axis)}
    if combined and not operator.target.startswith("aten::"):
        return _of_users(operator, combined, axes)
    if combined:
        found = combining(operator, together=any(s.also is not None for s in combined))
        if found is None:
            return "a kernel that does not exist", axes, {}
        return found.function, axes, _offsets(operator, operator.inputs[0], combined) if found.begins else {}
    for target in (operator.target, operator.target.partition(".")[0]):
        if (adding := ADDING.get(target)) is not None:
            operand = operator.inputs[adding.operand]
            axis = argument(operator, adding.axis) if isinstance(adding.axis, str) else adding.axis
            rows = [s for s in splits if operand.axes and s.dim in operand.axes[axis] and operator.summed(s.dim)]
            if rows:
                return adding.function, set(), _offsets(operator, operand, rows)
    return Kernel().function, set(), {}


def _of_users(operator: Operator, combined: list[Split], axes: set[str]) -> tuple[str, set[str], Offsets]:
    """A user's operator: its row says which kernel combines the parts, and what the kernel is told."""
    kernel = row(operator).kernel
    if kernel is None:
        return "a kernel that does not exist", axes, {}
    parameter, _ = kernel.axis
    split = next(o for name, o in zip(parameters(operator), operator.inputs, strict=True) if name == parameter)
    offsets = _offsets(operator, split, combined) if kernel.is_placed else {}
    return kernel.function, axes if "{group}" in kernel.call else set(), offsets


def _offsets(operator: Operator, operand: Operand, splits: list[Split]) -> Offsets:
    """Where a part begins along the axis of an operand; raises Wrong where the part is not one run of it."""
    axis = next(a for a in operand.axes if splits[0].dim in a)
    if any(s.dim not in axis for s in splits):
        raise Wrong(Rule.KERNEL, "splits of one axis", [s.dim for s in splits])
    steps: Offsets = {}
    for s in splits:
        if any(len(runs) != 1 for runs in s.at or ()) or [*(s.at or ())] != sorted(s.at or ()):
            raise Wrong(Rule.KERNEL, "parts one behind the other", s.at)
        inner = math.prod(operator.dims[d].size for d in axis[axis.index(s.dim) + 1 :])
        steps[s.coordinate] = (inner if s.sizes else s.stride * inner, s.sizes)
    whole = math.prod(operator.dims[d].size for d in axis)
    is_run = len(splits) == 1 and splits[0].sizes is not None and splits[0].dim == axis[0]
    if not is_run and min(step for step, _ in steps.values()) * math.prod(s.parts for s in splits) != whole:
        raise Wrong(Rule.KERNEL, "parts that are runs of the axis", [s.dim for s in splits])
    return steps


def _words(function: str, axes: set[str], offsets: Offsets) -> str:
    begins = ", ".join(f"{c.name} * {sizes or step}" for c, (step, sizes) in offsets.items())
    return f"{function or 'its own call'} over {{{', '.join(sorted(axes))}}} from ({begins})"
