"""Finds the weights of ZeRO-3 that backward gathers again, and those that get a gradient.

Autograd keeps no gathered memory. Backward gathers a flat parameter when it reads it, and keeps it until it has the
gradients of one of its gathers (`ssdsl/runtime/ranks/regather.py`, `flat_params.py`). So it matters whether a tensor
that an operator saves is in that memory: the weight itself, a view of it, or a part that lies in one piece. A part that
was copied is kept like any value. A recomputed section gathers for itself, as its forward did.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

from ssdsl.ir.comm import Narrow, Step
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, reads_of, results_of
from ssdsl.ir.layout import Cut
from ssdsl.ir.param import FlatParam
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Name, Var
from ssdsl.lower.functions.views import views_in
from ssdsl.model.graph import Graph
from ssdsl.record import Record

Gather = tuple[int, int]  # the number of the section that gathers, and of the flat parameter


class GatherStep(NamedTuple):
    """A step of a task when it comes to an instruction: it gathers, or, behind the backward of the instruction, it
    `reduces` the gradient of what was gathered, and no longer needs it."""

    at: InstrPlace
    gather: Gather
    reduces: bool = False


class Regathered(Record, dict=True):
    """The gathers that a function's backward repeats, and the reductions of gradients of what was gathered, in
    order."""

    steps: tuple[GatherStep, ...]

    @cached_property
    def again(self) -> Mapping[Gather, int]:
        """How often backward repeats each gather."""
        return Counter(step.gather for step in self.steps if not step.reduces)

    @cached_property
    def learning(self) -> frozenset[Gather]:
        """The gathers that get a gradient."""
        return frozenset(step.gather for step in self.steps if step.reduces)


class _Memory(Record):
    """The gathered memory that a value is in, and whether its elements lie there in order, without gaps."""

    gather: Gather
    contiguous: bool = True


def regathered(function: Function, flats: Sequence[FlatParam], graph: Graph) -> Regathered:
    """Follows gathered memory through a function's forward, then goes through its backward, in reverse order."""
    walk = _Walk(function, flats, graph)
    return Regathered(tuple(walk.backward()))


class _Walk:
    """The walk through forward. `here` has, for each section, the gathers that it reads, by flat parameter; `memory`
    has the values that are views of gathered memory. `first` has, by gather, the place of the first instruction that
    reads it and gives it a gradient, the last in backward."""

    def __init__(self, function: Function, flats: Sequence[FlatParam], graph: Graph) -> None:
        self.function, self.graph, self.variables = function, graph, function.variables()
        flat_of = {w: n for s in function.sections for n in s.gathers for w in flats[n].weights}
        self.weights = {p.var.name: flat_of[w] for p in function.parameters if (w := p.var.name.value) in flat_of}
        self.memory: dict[Name, _Memory] = {}
        self.here: list[dict[int, Gather]] = []
        self.first: dict[Gather, InstrPlace] = {}
        shared: dict[int, Gather] = {}
        for number, section in enumerate(function.sections):
            apart = section.is_apart
            self.here.append({} if apart else shared)
            self.here[number].update((n, (number, n)) for n in section.gathers)
            for n, instr in enumerate(section.body):
                self._instr(InstrPlace(number, n), instr)

    def _instr(self, at: InstrPlace, instr: Instr) -> None:
        """Notes the results of an instruction that are in gathered memory, and the gathers to which it gives a
        gradient."""
        if any(v.gradient is not None for v in results_of(instr)):
            for name in (r for r in reads_of(instr) if r in self.weights):
                self.first.setdefault(self.here[at.section][self.weights[name]], at)
        self.memory.update((name, memory) for name, memory in self._views(instr, at.section) if memory is not None)

    def backward(self) -> Iterator[GatherStep]:
        """Yields the steps of backward in order. A recomputed section runs again, with all its gathers, when backward
        comes to its last instruction."""
        reads: dict[InstrPlace, list[Gather]] = {}
        remade = {
            InstrPlace(number, len(section.body)): self.here[number].values()
            for number, section in enumerate(self.function.sections)
            if section.recompute
        }
        for at, name in self.function.kept():
            is_inside = name in self.weights and self.function.sections[at.section].recompute  # it gathers for itself
            if not is_inside and (memory := self._behind(name, at.section)) is not None:
                reads.setdefault(at, []).append(memory.gather)
        there: set[int] = set()
        for at in sorted({*remade, *reads, *self.first.values()}, reverse=True):
            yield from (GatherStep(at, gather) for gather in remade.get(at, ()))
            for gather in reads.get(at, ()):
                if gather[1] not in there:
                    yield GatherStep(at, gather)
                there.add(gather[1])
            for gather in (gather for gather, first in self.first.items() if first == at):
                there.discard(gather[1])
                yield GatherStep(at, gather, reduces=True)

    def _behind(self, name: Name, section: int) -> _Memory | None:
        """The gathered memory that a value is a view of, if read in this section; None if there is none."""
        return _Memory(self.here[section][self.weights[name]]) if name in self.weights else self.memory.get(name)

    def _views(self, instr: Instr, section: int) -> Iterator[tuple[Name, _Memory | None]]:
        match instr:
            case OpPart():
                for result, read in views_in(instr, self.graph).items():
                    if (memory := self._behind(read, section)) is not None:
                        yield result, _Memory(memory.gather, self._is_contiguous(result.value))
            case Conversion(source=source):
                memory = self._behind(source, section)
                if memory is not None:
                    yield instr.result.name, _narrowed(memory, self.variables[source], instr.forward)

    def _is_contiguous(self, value: str) -> bool:
        strides = self.graph.storages[value].strides
        return list(strides) == sorted(strides, reverse=True) and 0 not in strides


def _narrowed(memory: _Memory, source: Var, steps: Sequence[Step]) -> _Memory | None:
    """The memory of a value after some steps; None if a step makes a new tensor. A part that devices cut out is copied,
    unless it lies in one piece; in time, one run is a view, and runs of several blocks are copied."""
    shape = [size.mean for size in source.shape]
    for step in steps:
        if not isinstance(step, Narrow):
            return None
        cut, is_run = step.target, memory.contiguous and _is_run(step.target, shape)
        if not is_run and not (step.in_time and _has_one_run(cut)):
            return None
        memory = _Memory(memory.gather, is_run)
        shape[cut.dim] //= cut.count
    return memory


def _is_run(cut: Cut, shape: Sequence[int]) -> bool:
    """Whether a part of a contiguous tensor lies in one piece."""
    return _has_one_run(cut) and prod(shape[: cut.dim]) == 1


def _has_one_run(cut: Cut) -> bool:
    return cut.outer == 1 and (cut.at is None or all(len(runs) == 1 for runs in cut.at))
