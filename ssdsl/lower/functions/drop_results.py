"""Marks the results of recomputed sections that are not kept: it runs again when a reader's backward needs them.

For example `y = linear(gelu(x), w)` with a recomputed GELU. The section keeps `x` and makes its inside again. But the
product saves the GELU's result, which is as large as `x`: kept for that reader, the recomputation would save nothing.
Megatron-LM drops such results too (`moe_act`, `layernorm` of `--recompute-modules`).

A result is dropped if only operators of the section's own layer save it. They run by their own call, not by a kernel of
the runtime, so the section runs again at the same time on all devices. A result that enters another recomputed section
is kept, and so is one that readers in other layers save: backward would otherwise make one layer after another again
before it needs the first. Where backward runs in halves the results are kept: both halves may read them.
"""

from ssdsl.ir.comm import Narrow
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    OpPart,
    Section,
    results_of,
)
from ssdsl.ir.value import Name
from ssdsl.lower.functions.views import memory_of
from ssdsl.lower.stages import Formed
from ssdsl.model.graph import Graph
from ssdsl.record import replace


def drop_results(lowering: Formed) -> Formed:
    """Sets `again` of recomputed sections.

    Of a GELU in front of a product, with `recompute model.gelu`:

        -   section recompute
        +   section recompute again %gelu
    """
    functions = tuple(_marked(f, lowering.graph) if _may_drop(f) else f for f in lowering.functions)
    return replace(lowering, functions=functions)


def _may_drop(function: Function) -> bool:
    return function.backward is Backward.WHOLE and any(s.recompute for s in function.sections)


def _marked(function: Function, graph: Graph) -> Function:
    memory, variables = memory_of(function, graph), function.variables()
    kept = {memory.get(name, name) for name in function.uses.outputs}  # in any case
    savers: dict[Name, set[str]] = {}  # by value, the layers in which only operators save it, or conversions repeat it
    for place, name in function.kept():
        section, instr, root = function.sections[place.section], function.at(place), memory.get(name, name)
        if section.recompute or (isinstance(instr, OpPart) and instr.kernel.function):
            kept.add(root)
        else:
            savers.setdefault(root, set()).add(section.layer)
    for section in (s for s in function.sections if not s.recompute):
        for instr in (i for i in section.body if isinstance(i, Conversion)):
            root = memory.get(instr.source, instr.source)
            if _shares_memory(instr):
                kept.add(root)
            if instr.again:
                savers.setdefault(root, set()).add(section.layer)
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


def _shares_memory(instr: Conversion) -> bool:
    """Whether a conversion takes a part of its source, or works on it in place."""
    return instr.in_place[0] or any(isinstance(s, Narrow) and not s.in_time for s in instr.forward)
