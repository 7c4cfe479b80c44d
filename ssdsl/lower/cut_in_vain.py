"""Finds splits that cost communication and save next to nothing: operators without products cut what they get whole,
and whoever reads them needs it whole again."""

from collections.abc import Iterator
from dataclasses import dataclass

from ssdsl.ir.comm import AllGather, Narrow
from ssdsl.ir.function import Function, Instr, OpPart, Reshard, reads_of, results_of
from ssdsl.ir.layout import Shard
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name, Type
from ssdsl.lower.errors import CutInVain
from ssdsl.model.graph import ITEMSIZE, Graph
from ssdsl.text.source import Span


def cut_in_vain(program: Program) -> Iterator[CutInVain]:
    """A warning for each statement that cuts operators in vain along an axis, with what a device gathers of them."""
    found: dict[tuple[Span | None, str], list[tuple[str, int]]] = {}
    for function in program.functions:
        if gathers := [i for i in function.body() if isinstance(i, Reshard) and _gathers(i)]:
            flow = _Flow.of(function, program.graph)
            for instr, (step,) in ((i, i.forward) for i in gathers):
                (axis,) = step.axes
                maker = flow.made.get(instr.source)
                if isinstance(maker, OpPart) and flow.is_in_vain(maker, axis):
                    key = program.plan.said(maker.operator, axis), axis
                    size = step.elements * ITEMSIZE.get(instr.result.dtype, 4)
                    found.setdefault(key, []).append((maker.operator, size))
    for (span, axis), gathered in found.items():
        operator = program.graph.by_name[gathered[0][0]]
        named = f"{operator.path} {operator.kind}".strip()
        yield CutInVain(span, named, axis, len(gathered), sum(size for _, size in gathered))


def _gathers(instr: Reshard) -> bool:
    """Whether a conversion gathers parts along one axis, and does nothing else."""
    return len(instr.forward) == 1 and isinstance(instr.forward[0], AllGather) and len(instr.forward[0].axes) == 1


@dataclass(frozen=True, slots=True)
class _Flow:
    """The instructions of a function by the values that they make and read."""

    function: Function
    graph: Graph
    made: dict[Name, Instr]
    readers: dict[Name, list[Instr]]
    leaving: frozenset[Name]
    types: dict[Name, Type]

    @classmethod
    def of(cls, function: Function, graph: Graph) -> "_Flow":
        made, readers = dict[Name, Instr](), dict[Name, list[Instr]]()
        for instr in function.body():
            made |= {var.name: instr for var in results_of(instr)}
            for name in reads_of(instr):
                readers.setdefault(name, []).append(instr)
        types = {name: var.type for name, var in function.variables().items()}
        return cls(function, graph, made, readers, frozenset(o.name for o in function.outputs), types)

    def is_in_vain(self, first: OpPart, axis: str) -> bool:
        """Whether this operator, and all that are cut with it, only cut what is whole and is gathered behind them."""
        left, seen = [first], {first.operator}
        while left:
            op = left.pop()
            near = self._cut_with(op, axis)
            if near is None or self.graph.by_name[op.operator].row.contraction:
                return False
            left += [other for other in near if other.operator not in seen]
            seen |= {other.operator for other in near}
        return True

    def _cut_with(self, op: OpPart, axis: str) -> list[OpPart] | None:
        """The operators that hand this one its parts, or read its own. None if it gets parts otherwise than from whole
        values, or leaves them otherwise than to be gathered."""
        ins = [self.made.get(name) for name in op.reads if self._is_cut(name, axis)]
        outs = [reader for var in op.results for reader in self.readers.get(var.name, ())]
        if any(var.name in self.leaving or not self._is_cut(var.name, axis) for var in op.results):
            return None
        near = [instr for instr in (*ins, *outs) if isinstance(instr, OpPart)]
        moved = [(instr, Narrow) for instr in ins] + [(instr, AllGather) for instr in outs]
        return near if all(isinstance(i, OpPart) or _only(i, step, axis) for i, step in moved) else None

    def _is_cut(self, name: Name, axis: str) -> bool:
        place = dict(zip((a for a, _ in self.function.submesh.axes), self.types[name].layout.places, strict=True))[axis]
        return isinstance(place, Shard)


def _only(instr: Instr | None, step: type[Narrow | AllGather], axis: str) -> bool:
    """Whether an instruction takes this step along the axis, and no other."""
    return isinstance(instr, Reshard) and [(type(s), s.axes) for s in instr.forward] == [(step, (axis,))]
