"""Fusion: the kernels in which operators run on a device, the values that each kernel reads and writes, and those that
autograd keeps of it until its backward has run.

Compilers of models (torch.compile, XLA) and the hand-written kernels of training stacks make one kernel of consecutive
operators if none of them is a matrix product, reads by an index or communicates: the intermediate values never reach
memory. A kernel ends with an operator that needs a whole row (a sum, a softmax, a normalisation), and a cast of its
result. Eager PyTorch launches one kernel for each operator.

What is kept of a kernel of one operator is what PyTorch keeps. The backward of a kernel of several operators recomputes
pointwise results from the kernel's inputs, if keeping these takes no more memory: a GELU written out in single
operators keeps only its input. Results of a normalisation or a softmax, and dropout masks, are kept, in the dtype of
the kernel's result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from ssdsl.analyse.program_index import ProgramIndex, size_bytes
from ssdsl.ir.function import Function, OpPart, Section, saved_names
from ssdsl.ir.program import Kernels
from ssdsl.ir.value import Name, Var
from ssdsl.lower.functions.views import is_view
from ssdsl.model.graph import Operator
from ssdsl.record import Record


class Launch(Record):
    """One kernel: its operators, the values that they read from outside, each once, and the results that are read
    outside. `kept` are the values that autograd keeps, weights among them; `extras` are further tensors that it keeps:
    the number of the operator, a description, and the bytes."""

    ops: tuple[OpPart, ...]
    reads: tuple[Name, ...]
    writes: tuple[Var, ...]
    kept: tuple[Name, ...]
    extras: tuple[tuple[int, str, int], ...]


@dataclass(slots=True)
class Fusion:
    """The kernels of a program's functions, found once for sections of one kind."""

    facts: ProgramIndex
    _found: dict[int, tuple[tuple[Launch, ...], ...]] = field(default_factory=dict)
    _of_kind: dict[int, tuple[Section, tuple[Launch, ...]]] = field(default_factory=dict)

    def launches(self, function: Function) -> tuple[tuple[Launch, ...], ...]:
        """The kernels of each section, in order. Operators that only make views are in none."""
        if function.number not in self._found:
            self._found[function.number] = tuple(self._launches(function, section) for section in function.sections)
        return self._found[function.number]

    def _launches(self, function: Function, section: Section) -> tuple[Launch, ...]:
        if section.kind in self._of_kind:
            return tuple(_renamed(*self._of_kind[section.kind], section))
        runs = self._runs(section)
        found = tuple(launch for run in runs for launch in self._kernels(function, run))
        if section.kind is not None:
            self._of_kind[section.kind] = section, found
        return found

    def launch_of(self, function: Function, op: OpPart) -> Launch:
        """The kernel that an operator is in."""
        return next(x for section in self.launches(function) for x in section if op in x.ops)

    def _runs(self, section: Section) -> Iterator[list[OpPart]]:
        """Yields runs of operators that may share kernels, with the views between them; any other operator alone.
        Those that torch compiles are in the section's compiled runs."""
        run: list[OpPart] = []
        compiles = self.facts.program.kernels is Kernels.COMPILED
        for number, instr in enumerate(section.body):
            joins = not compiles or section.run_at(number) is not None
            if joins and isinstance(instr, OpPart) and (self._is_view(instr) or self._may_fuse(instr)):
                run.append(instr)
                continue
            yield run
            run = []
            if isinstance(instr, OpPart):
                yield [instr]
        yield run

    def _kernels(self, function: Function, run: list[OpPart]) -> Iterator[Launch]:
        """Yields the kernels of a run: operators are in one kernel if one reads the result of another, also through
        views, and may follow it."""
        base: dict[Name, Name] = {}  # by view, the value that it looks into
        group: dict[Name, list[OpPart]] = {}  # by result, the operators of the kernel that makes it
        for op in run:
            if self._is_view(op):
                base |= {v.name: base.get(op.reads[0], op.reads[0]) for v in op.results}
                continue
            joined = [op]
            for other in (group.get(base.get(r, r)) for r in op.reads):
                if other is not None and self._goes_on(other, op):
                    joined = [*(o for o in other if o not in joined), *joined]
            group |= {v.name: joined for o in joined for v in o.results}
        views = frozenset(op.operator for op in run if self._is_view(op))
        place = {op.operator: k for k, op in enumerate(run)}
        for ops in {ops[-1].operator: ops for ops in group.values()}.values():
            inside = frozenset(op.operator for op in ops) | views
            made = {v.name for op in ops for v in op.results}
            left = {base.get(n, n) for n in (*made, *base) if is_read_outside(function, n, inside)}
            yield self._launch(function, sorted(ops, key=lambda op: place[op.operator]), base, left)

    def _launch(self, function: Function, ops: list[OpPart], base: Mapping[Name, Name], left: Set[Name]) -> Launch:
        """The kernel of some operators; `base` is the value that each view of the run looks into, `left` are the values
        that are read outside."""
        saved = [self.facts.saved_by(op) for op in ops]
        made = {v.name: v for op in ops for v in op.results}
        reads = dict.fromkeys(r for op in ops for r in op.reads if base.get(r, r) not in made)
        writes = tuple(v for n, v in made.items() if n in left)
        kept = dict.fromkeys(name for op, s in zip(ops, saved, strict=True) for name in saved_names(op, s))
        if len(ops) > 1:
            kept = _cheapest(self.facts, function, ops, {v.name for v in writes}, base, kept)
        extras = ((k, f"{e.what} {n}", e.size_bytes) for k, s in enumerate(saved) for n, e in enumerate(s.extras))
        return Launch(tuple(ops), tuple(reads), writes, tuple(kept), tuple(extras))

    def _is_view(self, op: OpPart) -> bool:
        return is_view(op, self.facts.program.graph)

    def _may_fuse(self, op: OpPart) -> bool:
        return self.facts.fuses and not op.kernel.function and can_fuse(self.facts.operators[op.operator])

    def _goes_on(self, ops: list[OpPart], following: OpPart) -> bool:
        """Whether an operator may follow others in their kernel: all of them are pointwise, or it is a cast."""
        if not self.facts.fuses:
            return False
        operators = self.facts.operators
        return is_cast(operators[following.operator]) or all(is_pointwise(operators[op.operator]) for op in ops)


def is_cast(operator: Operator) -> bool:
    """Whether an operator converts its operand to another dtype."""
    return operator.kind == "_to_copy"


def is_pointwise(operator: Operator) -> bool:
    """Whether an operator works on each position by itself: it needs no dimension whole, and sums over none."""
    made = {d for o in operator.outputs for axis in o.axes for d in axis}
    return len(made) == len(operator.dims) and not any(d.fixed or d.combined for d in operator.dims)


def can_fuse(operator: Operator) -> bool:
    """Whether an operator may be in a kernel with others: it works position by position or row by row, or sums its one
    operand."""
    if operator.row.contraction or any(d.window is not None for d in operator.dims):
        return False
    given = {d for operand in operator.inputs for axis in operand.axes for d in axis}
    made = {d for operand in operator.outputs for axis in operand.axes for d in axis}
    return made <= given and (given <= made or len(operator.inputs) == 1)


def _renamed(like: Section, launches: Iterable[Launch], section: Section) -> Iterator[Launch]:
    """Yields the kernels of a section: those of `like`, a section of the same kind, with its names replaced."""
    ops = {id(old): new for old, new in zip(like.body, section.body, strict=True)}
    names = dict(zip(like.names(), section.names(), strict=True))
    for launch in launches:
        made = tuple(op for old in launch.ops if isinstance(op := ops[id(old)], OpPart))
        results = {v.name: v for op in made for v in op.results}
        writes = tuple([results[names[v.name]] for v in launch.writes])
        reads, kept = tuple([names[r] for r in launch.reads]), tuple([names[n] for n in launch.kept])
        yield Launch(made, reads, writes, kept, launch.extras)


def is_read_outside(function: Function, name: Name, inside: Set[str]) -> bool:
    """Whether anything but the operators `inside` reads a value, or it leaves the function."""
    readers = map(function.at, function.uses.readers.get(name, ()))
    is_outside = (not isinstance(i, OpPart) or i.operator not in inside for i in readers)
    return name in function.uses.outputs or any(is_outside)


# -- tensors that autograd keeps ---------------------------------------------------------------------------------------


def _cheapest(
    facts: ProgramIndex,
    function: Function,
    ops: Sequence[OpPart],
    leaves: Set[Name],
    base: Mapping[Name, Name],
    values: Iterable[Name],
) -> dict[Name, None]:
    """The values that a kernel keeps: for each one that backward needs, either itself or the values from which it is
    recomputed, whichever takes less memory. `leaves` are the results that are read outside."""
    variables, prepared = facts.variables(function), {p.var.name.value for p in function.prepared}
    makers = {v.name: op for op in ops for v in op.results if is_pointwise(facts.operators[op.operator])}
    # a value whose only use outside the kernel is a cast is kept as the cast: that tensor exists anyway
    casts = [op for op in ops if is_cast(facts.operators[op.operator])]
    left = {base.get(op.reads[0], op.reads[0]): op.results[0].name for op in casts}
    left = {n: copy for n, copy in left.items() if n not in leaves and copy in leaves}
    found = {left.get(base.get(n, n), n): None for n in values if base.get(n, n) not in makers}
    for name in (n for n in values if base.get(n, n) in makers):
        own_roots = (n for n in _made_of(name, makers, base) if n not in found and n.value not in prepared)
        roots = [n for n in own_roots if n.value not in facts.stored]
        own, again = size_bytes(variables[name]), sum(size_bytes(variables[n]) for n in roots)
        if own < again or (own == again and base.get(name, name) in leaves):
            found[name] = None
        else:
            found |= dict.fromkeys(roots)
    return found


def _made_of(name: Name, makers: Mapping[Name, OpPart], base: Mapping[Name, Name]) -> dict[Name, None]:
    maker = makers.get(base.get(name, name))
    if maker is None:
        return {name: None}
    return {n: None for read in maker.reads for n in _made_of(read, makers, base)}
