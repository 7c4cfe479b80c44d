"""The storages that the kernels of a function touch, with their bytes on one device.

Storages are counted, not tensors: a view keeps the whole storage that it looks into, and a storage that several
operators keep counts once. A part that reads windows needs a padded copy of its operand if the operator cannot add its
padding by itself: PyTorch pads both sides of an axis alike, but a part at a border of a volume has padding on one side
only. `ssdsl/runtime/kernels/windows.py` then pads a copy, and autograd keeps the copy instead of the operand.
"""

from collections.abc import Mapping, Set
from functools import cache
from math import prod

from ssdsl.analyse.program_index import ProgramIndex, size_bytes
from ssdsl.analyse.tape import Sizes
from ssdsl.ir.function import Backward, Conversion, Function, OpPart, Side, WindowPart
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Coordinate, Name, Var
from ssdsl.lower.functions.views import made_again, memory_of, views_of
from ssdsl.model.dims.window import Run, Sliding, around
from ssdsl.model.graph import Dim, Operator
from ssdsl.record import Record, replace
from ssdsl.simulate.price.fusion import Fusion, Launch


class KernelStorages(Record):
    """The storages that a kernel needs for its backward: those that autograd `saved` of it, and of values that it
    reads, those that are `gathered` again and those that recomputed sections make again (`remade`, by the section's
    number). `inside_bytes` are those of gradients inside an operator that runs as PyTorch has it. `for_weights`: the
    results whose gradients the weights' half of its backward reads. `at` is its section, and its number there."""

    at: InstrPlace
    launch: Launch
    saved: Sizes
    gathered: Sizes
    remade: dict[int, Sizes]
    inside_bytes: int
    for_weights: tuple[Name, ...]


class Storages:
    """The storages of one function at one part along some indices in time. `base` maps each view to its base value;
    `again` maps values that backward gathers again to their sources, `remade` those that a recomputed section makes
    again to its number. Inputs that are `shared` are in memory for other functions already, which run less often."""

    def __init__(
        self, facts: ProgramIndex, fusion: Fusion, function: Function, shared: Set[Name], part: dict[Coordinate, int]
    ) -> None:
        self.facts, self.fusion, self.function, self.shared, self.part = facts, fusion, function, shared, part
        self.size = cache(lambda name: size_bytes(self.variables[name]))
        self.root = cache(lambda name: str(self.behind(name)))  # the storage of a value
        self.variables = {
            name: replace(var, shape=tuple(size.at(part) for size in var.shape)) if part else var
            for name, var in facts.variables(function).items()
        }
        self.base = views_of(function, facts.program.graph)
        self.remade = made_again(function, facts.program.graph)
        self.memory = memory_of(function, facts.program.graph) if self.remade else {}
        moved = (i for i in function.body() if isinstance(i, Conversion))
        self.again = {str(i.result.name): i.source for i in moved if i.again}
        self.prepared = {p.var.name.value for p in function.prepared}

    def kernels(self) -> list[KernelStorages]:
        """What each kernel needs for its backward, in order."""
        return [
            self._kernel(InstrPlace(section, number), launch)
            for section, launches in enumerate(self.fusion.launches(self.function))
            for number, launch in enumerate(launches)
        ]

    def behind(self, name: Name) -> Name:
        """The value that a view looks into, if the function makes it; else the name itself."""
        base = self.base.get(name, name)
        return base if base in self.function.uses.makers else name

    def kept_of(self, name: Name) -> Sizes:
        """As `behind_of`, but none for a weight, or for what was prepared for the whole step."""
        return {} if name.value in self.facts.stored or name.value in self.prepared else self.behind_of(name)

    def behind_of(self, name: Name) -> Sizes:
        """The storage that is kept of a value: for one that is gathered again that of its source, for one that is made
        again none."""
        root = self.behind(name)
        if root in self.remade:
            return {}
        source = self.again.get(str(root))
        return {str(root): self.size(root)} if source is None else self.behind_of(source)

    def _kernel(self, at: InstrPlace, launch: Launch) -> KernelStorages:
        in_halves = self.function.backward is Backward.HALVES
        with_weights = (op for op in launch.ops if in_halves and op.sides is not None and Side.WEIGHT in op.sides)
        for_weights = tuple(v.name for op in with_weights for v in op.results)
        gathered, remade = self._gathered(launch), self._remade(launch)
        return KernelStorages(at, launch, self._saved(launch), gathered, remade, self._inside(launch), for_weights)

    def _saved(self, launch: Launch) -> Sizes:
        op, saved = launch.ops[0], Sizes()
        for name in launch.kept:
            if name in self.shared:
                continue
            if name == op.reads[0] and (padded := padded_bytes(self.facts, op, self.variables[name], self.part)):
                saved[f"{op.operator} padded"] = padded
            else:
                saved |= self.kept_of(name)
        return saved | {f"{launch.ops[k].operator} {what}": size for k, what, size in launch.extras}

    def _gathered(self, launch: Launch) -> Sizes:
        if not self.again:
            return {}
        roots = map(self.behind, launch.kept)
        return {str(r): self.size(r) for r in roots if str(r) in self.again}

    def _remade(self, launch: Launch) -> dict[int, Sizes]:
        remade: dict[int, Sizes] = {}
        for name in launch.kept if self.remade else ():
            source = self.again.get(str(self.behind(name)), name)
            if (section := self.remade.get(source)) is not None:
                root = self.memory.get(source, source)
                remade.setdefault(section, {})[str(root)] = self.size(root)
        return remade

    def _inside(self, launch: Launch) -> int:
        chained = (op for op in launch.ops if self.facts.operators[op.operator].row.chained)
        runs = (op for op in chained if op.learns and not op.kernel.function and not self.facts.fuses)
        return sum(self.size(op.reads[0]) for op in runs)


# -- padded copies -----------------------------------------------------------------------------------------------------


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
