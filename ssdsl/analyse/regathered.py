"""Finds the weights of ZeRO-3 that backward gathers again, and those that get a gradient.

Autograd keeps no gathered memory. Backward gathers a flat parameter when it reads it, and keeps it until it has the
gradients of one of its gathers (`ssdsl/runtime/ranks/regather.py`, `flat_params.py`). So it matters whether a tensor
that an operator saves is in that memory: the weight itself, a view of it, or a part that lies in one piece. A part that
was copied is kept like any value. A recomputed section gathers for itself, as its forward did.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ssdsl.ir.comm import Narrow, Step
from ssdsl.ir.function import Conversion, Function, Instr, OpPart, Section, reads_of, results_of, saved_names
from ssdsl.ir.layout import Cut
from ssdsl.ir.param import FlatParam
from ssdsl.ir.value import Name, Var
from ssdsl.lower.functions.views import views_in
from ssdsl.model.graph import Graph
from ssdsl.record import Record

Gather = tuple[int, int]  # the number of the section that gathers, and of the flat parameter


class Regathered(Record):
    """The gathers of a function that its backward repeats, with how often, and the gathers that get a gradient."""

    again: Mapping[Gather, int]
    learning: frozenset[Gather]


class _Memory(Record):
    """The gathered memory that a value is in, and whether its elements lie there in order, without gaps."""

    gather: Gather
    contiguous: bool = True


def regathered(function: Function, flats: Sequence[FlatParam], graph: Graph) -> Regathered:
    """Follows gathered memory through a function's forward, then goes through its backward, in reverse order."""
    walk = _Walk(function, flats, graph)
    return Regathered(walk.backward(), frozenset(walk.first))


class _Walk:
    """The walk through forward. `here` are the gathers that a section reads, by flat parameter; `memory` has the values
    that are views of gathered memory. `kept` has, by the number of an instruction, the gathers whose memory its
    backward reads; `first` has, by gather, the first instruction that reads it and gives it a gradient, the last in
    backward."""

    def __init__(self, function: Function, flats: Sequence[FlatParam], graph: Graph) -> None:
        self.graph, self.variables = graph, function.variables()
        flat_of = {w: n for s in function.sections for n in s.gathers for w in flats[n].weights}
        self.weights = {p.var.name: flat_of[w] for p in function.parameters if (w := p.var.name.value) in flat_of}
        self.memory: dict[Name, _Memory] = {}
        self.here: dict[int, Gather] = {}
        self.kept: list[dict[Gather, None]] = []
        self.first: dict[Gather, int] = {}
        self.repeated: Counter[Gather] = Counter()
        shared: dict[int, Gather] = {}
        for number, section in enumerate(function.sections):
            apart = bool(section.layer) or section.recompute
            self.here = {} if apart else shared
            self.here.update((n, (number, n)) for n in section.gathers)
            self._section(section)

    def backward(self) -> Counter[Gather]:
        """The number of times that backward repeats each gather."""
        held: set[int] = set()
        found = Counter(self.repeated)
        dropped: dict[int, list[Gather]] = {}
        for gather, at in self.first.items():
            dropped.setdefault(at, []).append(gather)
        for at, kept in reversed(list(enumerate(self.kept))):
            for gather in kept:
                found[gather] += gather[1] not in held
                held.add(gather[1])
            held -= {flat for _, flat in dropped.get(at, ())}
        return found

    def _section(self, section: Section) -> None:
        begin = len(self.kept)
        outside = set(self.memory)
        for instr in section.body:
            read = {r: m for r in reads_of(instr) if (m := self._behind(r)) is not None}
            if any(v.gradient is not None for v in results_of(instr)):
                for name in read:
                    if name in self.weights:
                        self.first.setdefault(read[name].gather, len(self.kept))
            saved = saved_names(instr, instr.saved) if isinstance(instr, OpPart) and not section.recompute else ()
            self.kept.append({m.gather: None for n in saved if (m := read.get(n)) is not None})
            self._follow(instr)
        if section.recompute:
            entering = dict.fromkeys(r for i in section.body for r in reads_of(i) if r in outside)
            self.kept[-1] = {self.memory[name].gather: None for name in entering}
            if len(self.kept) > begin:
                self.repeated.update(self.here.values())

    def _behind(self, name: Name) -> _Memory | None:
        """The gathered memory that a value is a view of, if read in this section; None if there is none."""
        return _Memory(self.here[self.weights[name]]) if name in self.weights else self.memory.get(name)

    def _follow(self, instr: Instr) -> None:
        """Notes the results of an instruction that are in gathered memory."""
        self.memory.update((name, memory) for name, memory in self._views(instr) if memory is not None)

    def _views(self, instr: Instr) -> Iterator[tuple[Name, _Memory | None]]:
        match instr:
            case OpPart():
                for result, read in views_in(instr, self.graph).items():
                    if (memory := self._behind(read)) is not None:
                        yield result, _Memory(memory.gather, self._is_contiguous(result.value))
            case Conversion(source=source):
                memory = self._behind(source)
                if memory is not None:
                    yield instr.result.name, _narrowed(memory, self.variables[source], instr.forward)

    def _is_contiguous(self, value: str) -> bool:
        strides = self.graph.storages[value].strides
        return list(strides) == sorted(strides, reverse=True) and 0 not in strides


def _narrowed(memory: _Memory, source: Var, steps: Sequence[Step]) -> _Memory | None:
    """The memory of a value after some steps; None if a step makes a new tensor. A part that devices cut out is copied,
    unless it lies in one piece; in time, one run or every n-th position is a view."""
    shape = [size.mean for size in source.shape]
    for step in steps:
        if not isinstance(step, Narrow):
            return None
        cut, is_run = step.target, memory.contiguous and _is_run(step.target, shape)
        each = cut.at is None and shape[cut.dim] == cut.outer * cut.count
        if not is_run and not (step.in_time and (each or _has_one_run(cut))):
            return None
        memory = _Memory(memory.gather, is_run)
        shape[cut.dim] //= cut.count
    return memory


def _is_run(cut: Cut, shape: Sequence[int]) -> bool:
    """Whether a part of a contiguous tensor lies in one piece."""
    return _has_one_run(cut) and prod(shape[: cut.dim]) == 1


def _has_one_run(cut: Cut) -> bool:
    return cut.outer == 1 and (cut.at is None or all(len(runs) == 1 for runs in cut.at))
