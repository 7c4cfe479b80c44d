"""Starts conversions early and awaits them late, where a device can compute in between.

A conversion that communicates is placed in front of its first reader. Here it starts as soon as its source is there,
and operators that do not need its result run before it is awaited. Of tokens that go to their experts, beside an
expert that all of them share:

    x@1 = all_to_all x                  start x@1
    y = linear(x@1)            is       z = linear_1(x)
    z = linear_1(x)                     x@1 = wait all_to_all x
    sum = add(y, z)                     y = linear(x@1)
                                        sum = add(y, z)

Backward runs in the opposite order, so there the gradient travels beside the same operators. Values do not depend on
it, to the last bit: if three or more gradients of a value are added, its readers stay in their order. A pair of a start
and a wait is in one section, so recomputation has both. Compiled runs stay whole.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ssdsl.ir.comm import travels
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, Section, Write, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.lower.functions.views import is_view
from ssdsl.lower.operators.operand_types import local_dims
from ssdsl.lower.stages import Formed
from ssdsl.model.graph import Graph
from ssdsl.record import replace

Step = tuple[Instr, ...]  # what runs at once: an instruction, or the operators of a compiled run

# While one element travels between hosts (bf16, 50 GB/s), an H100 writes some 30 and does some 20 000 multiplications.
BESIDE = 32
PER_RESULT = 512
FAR = 128  # steps: results of operators from farther behind would live long for it


def start_conversions(lowering: Formed) -> Formed:
    """Sets `in_flight` of sections, and puts each of these conversions in front of its first reader, behind operators
    that do not need it."""
    graph = lowering.graph
    return replace(lowering, functions=tuple(_started(f, graph) for f in lowering.functions))


def _started(function: Function, graph: Graph) -> Function:
    weights = frozenset(p.var.name for p in function.parameters)
    if not any(may_be_in_flight(instr, weights) for instr in function.body()):
        return function
    reads = Counter(read for instr in function.body() for read in reads_of(instr))
    reads.update(o.name for o in function.outputs)
    learning = frozenset(n for n, var in function.variables().items() if var.gradient is not None)
    ordered = learning.intersection(n for n, count in reads.items() if count > 2 or (count > 1 and n in weights))
    return replace(function, sections=tuple(_in_section(s, weights, ordered, graph) for s in function.sections))


def _in_section(section: Section, weights: frozenset[Name], ordered: frozenset[Name], graph: Graph) -> Section:
    """The section with its conversions in flight. The readers of `ordered` values stay in their order."""
    steps = [*_steps(section)]
    reads = [frozenset(read for instr in step for read in reads_of(instr)) for step in steps]
    makes = [frozenset(v.name for instr in step for v in results_of(instr)) for step in steps]
    moves = _Moves(section, steps, reads, makes, ordered, graph, [*range(len(steps))], [])
    for number, (instr, *_) in enumerate(steps):
        if may_be_in_flight(instr, weights):
            moves.start(number)
    return moves.section_after() if moves.pairs else section


def may_be_in_flight(instr: Instr, weights: Collection[Name]) -> bool:
    """Whether an instruction is a conversion that may start before its result is needed: it communicates, backward does
    not gather again, and it is of no weight."""
    if not isinstance(instr, Conversion) or instr.again or not _travelling(instr):
        return False
    return not any(read in weights for read in reads_of(instr))


def _travelling(conversion: Conversion) -> int:
    """The elements that travel in the larger of its steps, forward or backward."""
    return max((s.elements for s in (*conversion.forward, *conversion.backward) if travels(s)), default=0)


def _steps(section: Section) -> Iterator[Step]:
    """What a section runs one after another."""
    number = 0
    while number < len(section.body):
        _, stop = section.run_at(number) or (number, number + 1)
        yield section.body[number:stop]
        number = stop


@dataclass
class _Moves:
    """The steps of a section, with the values that each reads and makes, in a new `order`. A pair is a step, None for
    the section's beginning, and the conversion that starts behind it."""

    section: Section
    steps: Sequence[Step]
    reads: Sequence[frozenset[Name]]
    makes: Sequence[frozenset[Name]]
    ordered: frozenset[Name]
    graph: Graph
    order: list[int]
    pairs: list[tuple[int | None, int]]

    def start(self, number: int) -> None:
        """Starts a conversion behind what makes its source, if enough is computed between there and its first
        reader."""
        (instr,) = self.steps[number]
        assert isinstance(instr, Conversion)
        size, learns, at = _travelling(instr), not any(map(travels, instr.forward)), self.order.index(number)
        before = (k for k in range(at - 1, -1, -1) if self._is_before(self.order[k], number))
        begin = next(before, -1) + 1
        readers = (k for k in range(at, len(self.order)) if instr.result.name in self.reads[self.order[k]])
        end = next(readers, len(self.order))
        work = sum(self._work(n, learns=learns) for n in self.order[begin:end])
        moved = self._independent(end, instr.result.name, BESIDE * size - work, learns=learns)
        work += sum(self._work(n, learns=learns) for n in moved)
        behind = [n for n in self.order[end:] if n not in moved]
        if work >= size and (not self.section.recompute or any(map(self._saves, behind))):
            ahead = [n for n in self.order[:end] if n != number]
            self.pairs.append((self.order[begin - 1] if begin else None, number))
            self.order = [*ahead, *moved, number, *behind]

    def _is_before(self, other: int, number: int) -> bool:
        """Whether a conversion may only start behind another step: that makes what it reads, or adds its gradient for
        that first."""
        reads = self.reads[number]
        return not (reads.isdisjoint(self.makes[other]) and reads.isdisjoint(self.reads[other] & self.ordered))

    def _independent(self, end: int, awaited: Name, wanted: int, *, learns: bool) -> list[int]:
        """The first of the steps behind a place that can run without a value that is awaited there, until they do as
        much work as is wanted."""
        late, read, moved = {awaited}, set[Name](), list[int]()
        for number in self.order[end : end + FAR]:
            if wanted <= 0:
                break
            reads = self.reads[number]
            waits = not late.isdisjoint(reads) or not read.isdisjoint(reads & self.ordered)
            if not waits and self._may_move(number):
                moved.append(number)
                wanted -= self._work(number, learns=learns)
            else:
                late |= self.makes[number]
                read |= reads
        while moved and not self._work(moved[-1], learns=learns):
            moved.pop()
        return moved

    def _may_move(self, number: int) -> bool:
        """Whether a step only makes its results: it does not communicate, and changes no buffer."""
        for instr in self.steps[number]:
            match instr:
                case OpPart():
                    stays = bool(instr.kernel.axes) or bool(self.graph.by_name[instr.operator].statistics)
                case Conversion():
                    stays = _travelling(instr) > 0
                case Write():
                    stays = True
            if stays:
                return False
        return True

    def _work(self, number: int, *, learns: bool) -> int:
        """How many elements a step writes, or could write in the time of its multiplications; with `learns` only those
        that backward has to do with."""
        ops = (i for i in self.steps[number] if isinstance(i, OpPart) and (i.learns or not learns))
        return sum(self._work_of(op) for op in ops if not is_view(op, self.graph))

    def _work_of(self, op: OpPart) -> int:
        operator = self.graph.by_name[op.operator]
        products = math.prod(local_dims(operator, op.splits)) if operator.row.contraction else 0
        return sum(v.elements for v in op.results) + products // PER_RESULT

    def _saves(self, number: int) -> bool:
        """Whether backward keeps a tensor of a step. Recomputation ends with the last of these, and would not await
        what is in flight; in a compiled run only torch knows."""
        (instr, *more) = self.steps[number]
        return (
            not more and isinstance(instr, OpPart) and instr.learns and bool(instr.saved.inputs or instr.saved.outputs)
        )

    def section_after(self) -> Section:
        """The section with its steps in the new order."""
        starts, ends = dict[int, int](), dict[int | None, int]({None: 0})
        runs, body = list[tuple[int, int]](), list[Instr]()
        for number in self.order:
            starts[number] = len(body)
            body.extend(self.steps[number])
            ends[number] = len(body)
            if len(self.steps[number]) > 1:
                runs.append((starts[number], ends[number]))
        pairs = sorted(((ends[maker], starts[number]) for maker, number in self.pairs), key=lambda pair: pair[0])
        return replace(self.section, body=tuple(body), compiled=tuple(runs), in_flight=tuple(pairs))
