"""Padded copies: a part that reads windows needs one if the operator cannot add its padding by itself.

PyTorch pads both sides of an axis alike, but a part at a border of a volume has padding on one side only.
`ssdsl/runtime/kernels/windows.py` then pads a copy of the operand, and autograd keeps the copy instead of the operand.
"""

from collections.abc import Mapping
from math import prod

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import OpPart, WindowPart
from ssdsl.ir.value import Coordinate, Var
from ssdsl.model.dims.window import Run, Sliding, around
from ssdsl.model.graph import Dim, Operator


def padded_bytes(facts: ProgramIndex, op: OpPart, given: Var, part: Mapping[Coordinate, int]) -> int:
    """The bytes of the padded copy of an operator's first operand: for one part along the coordinates in `part`, and
    the mean along others. 0 if no part needs one."""
    if not op.kernel.windows:
        return 0
    operator = facts.operators[op.operator]
    split = {w.axis: _runs(w, part) for w in op.kernel.windows}
    lengths, copies = [], False
    for axis, size in enumerate(given.shape):
        window = _sliding(operator, axis)
        if window is None:
            lengths.append(size.mean)
            continue
        whole = (((0, _results(operator, axis)), (0, window.size)),)
        runs = [_length(window, *run) for run in split.get(axis, whole)]
        lengths.append(-(-sum(length for length, _ in runs) // len(runs)))
        copies |= any(is_copied for _, is_copied in runs)
    return prod(lengths) * facts.program.graph.values[given.name.value].itemsize if copies else 0


def _runs(window: WindowPart, part: Mapping[Coordinate, int]) -> tuple[tuple[Run, Run], ...]:
    """The runs of results and of needs of each part, or only of the part that is given."""
    runs = tuple(zip(map(around, window.results), window.needs, strict=True))
    return runs if window.coordinate not in part else (runs[part[window.coordinate]],)


def _windowed(operator: Operator, axis: int) -> Dim | None:
    dims = (operator.dims[d] for d in operator.inputs[0].axes[axis])
    return next((d for d in dims if d.window is not None), None)


def _sliding(operator: Operator, axis: int) -> Sliding | None:
    dim = _windowed(operator, axis)
    shape = dim.window.shape if dim is not None and dim.window is not None else None
    return shape if isinstance(shape, Sliding) else None


def _results(operator: Operator, axis: int) -> int:
    dim = _windowed(operator, axis)
    assert dim is not None and dim.window is not None
    return operator.dims[dim.window.of].size


def _length(window: Sliding, results: Run, needs: Run) -> tuple[int, bool]:
    """The length of the axis that the operator is given, and whether it is a padded copy.

    A convolution with 3 taps and padding 1 on 16 positions: the first half reads one position of padding and 9 others.

    >>> _length(Sliding(16, stride=1, before=1, taps=3), (0, 8), (0, 9))
    (10, True)
    >>> _length(Sliding(16, stride=1, before=1, taps=3), (0, 16), (0, 16))
    (16, False)
    """
    (start, end), length = results, needs[1] - needs[0]
    span = window.step * (window.taps - 1) + 1
    front = needs[0] - start * window.stride + window.before
    behind = (end - 1) * window.stride - window.before + span - needs[1]
    alike = (length + 2 * front - span) // window.stride + 1 == end - start
    if length >= span and front >= max(behind, 0) and alike:
        return length, False
    return length + front + behind, True
