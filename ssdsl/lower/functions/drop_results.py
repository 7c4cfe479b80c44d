"""Marks the results of recomputed sections that are not kept: it runs again when a reader's backward needs them.

For example `y = linear(gelu(x), w)` with a recomputed GELU. The section keeps `x` and makes its inside again. But the
product saves the GELU's result, which is as large as `x`: kept for that reader, the recomputation would save nothing.
Megatron-LM drops such results too (`moe_act`, `layernorm` of `--recompute-modules`).

A result is dropped if only operators of the section's own layer save it. They run by their own call, not by a kernel of
the runtime, so the section runs again at the same time on all devices. A result that enters another recomputed section
is kept, and so is one that readers in other layers save: backward would otherwise make one layer after another again
before it needs the first. Where backward runs in halves the results are kept: both halves may read them.
"""

from collections.abc import Iterator

from ssdsl.ir.comm import Narrow
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    Instr,
    OpPart,
    Section,
    results_of,
    saved_names,
)
from ssdsl.ir.value import Name
from ssdsl.lower.functions.views import memory_of
from ssdsl.lower.stages import Formed
from ssdsl.model.graph import Graph
from ssdsl.record import replace


def drop_results(lowering: Formed) -> Formed:
    """Sets `again` of recomputed sections."""
    functions = tuple(_marked(f, lowering.graph) if _may_drop(f) else f for f in lowering.functions)
    return replace(lowering, functions=functions)


def _may_drop(function: Function) -> bool:
    return function.backward is Backward.WHOLE and any(s.recompute for s in function.sections)


def _marked(function: Function, graph: Graph) -> Function:
    memory, variables = memory_of(function, graph), function.variables()
    kept = {memory.get(o.name, o.name) for o in function.outputs}
    savers: dict[Name, set[str]] = {}  # by value, the layers of the operators that save it
    for section in function.sections:
        for name in _kept_in(section):
            kept.add(memory.get(name, name))
        for name in _saved_in(section):
            savers.setdefault(memory.get(name, name), set()).add(section.layer)
    # backward reaches a value only through readers that give it a gradient
    kept |= {memory.get(name, name) for name, var in variables.items() if var.gradient is None}

    def again(section: Section, leaving: frozenset[Name]) -> tuple[Name, ...]:
        made = [v.name for i in section.body for v in results_of(i)]
        roots = {n: memory.get(n, n) for n in made if n in leaving}
        own = {n for n, root in roots.items() if root in made and root not in kept}
        return tuple(n for n in made if n in own and savers.get(roots[n]) == {section.layer})

    sections = zip(function.sections, function.leaving(), strict=True)
    marked = (replace(s, again=again(s, leaving)) if s.recompute else s for s, leaving in sections)
    return replace(function, sections=tuple(marked))


def _kept_in(section: Section) -> Iterator[Name]:
    """Yields the values that a section keeps in any case, or changes: those that a recomputed section reads from
    outside, those that a kernel of the runtime saves, and those of which a conversion takes a part, or works in place.
    """
    if section.recompute:
        yield from section.entering()
        return
    for instr in section.body:
        if isinstance(instr, OpPart) and instr.kernel.function:
            yield from saved_names(instr, instr.saved)
        elif isinstance(instr, Conversion) and _shares_memory(instr):
            yield instr.source


def _shares_memory(instr: Conversion) -> bool:
    return instr.in_place[0] or any(isinstance(s, Narrow) and not s.in_time for s in instr.forward)


def _saved_in(section: Section) -> Iterator[Name]:
    """Yields the values that autograd saves, or that a conversion keeps to repeat its steps."""

    def saved(instr: Instr) -> Iterator[Name]:
        if isinstance(instr, OpPart):
            yield from saved_names(instr, instr.saved)
        elif isinstance(instr, Conversion) and instr.again:
            yield instr.source

    if not section.recompute:
        for instr in section.body:
            yield from saved(instr)
