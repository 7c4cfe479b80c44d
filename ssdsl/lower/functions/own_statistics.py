"""Gives each recomputed operator its own part of the running statistics that it changes.

A batch norm adds to its running statistics in place, and must do so once a step, although a recomputed section runs
twice. When a section runs again, buffers that it reads are copies, so the second change is lost. That only holds for a
part that the section cuts itself: a part that was cut before, once for several sections, is no copy, and would be
changed twice. So each of these operators gets conversions of its own before it.
"""

from collections.abc import Collection, Iterator, Mapping

from ssdsl.ir.function import Conversion, Function, Instr, OpPart, reads_of
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Plan
from ssdsl.record import replace


def with_own_statistics(function: Function, graph: Graph, plan: Plan) -> Function:
    """The function with these conversions. It is not divided into sections yet: it has one."""
    (section,) = function.sections
    again = {o.operator for o in function.operators() if plan.of(o.operator).checkpoint is not None}
    changing = {name: frozenset(graph.by_name[name].statistics) for name in again}
    if not any(changing.values()):
        return function
    conversions = {i.result.name: i for i in section.body if isinstance(i, Conversion)}
    body: list[Instr] = []
    for instr in section.body:
        if isinstance(instr, OpPart) and (statistics := changing.get(instr.operator)):
            own = list(_own(instr, statistics, conversions))
            renamed = {old.result.name: new.result.name for old, new in own}
            body.extend(new for _, new in own)
            conversions |= {new.result.name: new for _, new in own}
            instr = replace(instr, reads=tuple(renamed.get(r, r) for r in instr.reads))
        body.append(instr)
    return replace(function, sections=(replace(section, body=tuple(_read(body, function))),))


def _own(
    op: OpPart, statistics: Collection[str], conversions: Mapping[Name, Conversion]
) -> Iterator[tuple[Conversion, Conversion]]:
    """The conversions that lead to the statistics that an operator reads, each with a new one that makes the same."""
    for read in op.reads:
        chain: list[Conversion] = []
        while read.value in statistics and read in conversions:
            chain.insert(0, conversions[read])
            read = conversions[read].source
        version = 1 + max((n.version for n in conversions if n.value == read.value), default=0)
        for number, old in enumerate(chain):
            result = replace(old.result, name=Name(read.value, version + number))
            yield old, replace(old, source=read, result=result)
            read = result.name


def _read(body: list[Instr], function: Function) -> list[Instr]:
    """The instructions without conversions whose results nothing reads."""
    wanted = {o.name for o in function.outputs}
    kept: list[Instr] = []
    for instr in reversed(body):
        if not isinstance(instr, Conversion) or instr.result.name in wanted:
            wanted.update(reads_of(instr))
            kept.append(instr)
    return kept[::-1]
