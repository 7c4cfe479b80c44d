"""The local values of a function that are views of others: they share their memory."""

from ssdsl.ir.comm import Narrow
from ssdsl.ir.function import Conversion, Function, OpPart
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph


def views_of(function: Function, graph: Graph) -> dict[Name, Name]:
    """The results of operators that are views, each with the value that it is a view of. That one is no view itself: it
    is a result of an operator or a conversion, or enters the function."""
    found: dict[Name, Name] = {}
    for op in function.operators():
        for name, read in views_in(op, graph).items():
            found[name] = found.get(read, read)
    return found


def memory_of(function: Function, graph: Graph) -> dict[Name, Name]:
    """As `views_of`, also through conversions that move nothing forward, or only cut a part in time."""
    found: dict[Name, Name] = {}
    for instr in function.body():
        if isinstance(instr, OpPart):
            found |= {name: found.get(read, read) for name, read in views_in(instr, graph).items()}
        elif isinstance(instr, Conversion) and all(isinstance(s, Narrow) and s.in_time for s in instr.forward):
            found[instr.result.name] = found.get(instr.source, instr.source)
    return found


def made_again(function: Function, graph: Graph) -> dict[Name, int]:
    """The values that are not kept because a recomputed section makes them, or what they are views of, again: each with
    the section's number."""
    if not any(section.again for section in function.sections):
        return {}
    memory = memory_of(function, graph)
    roots = {memory.get(n, n): k for k, section in enumerate(function.sections) for n in section.again}
    return {name: roots[root] for name in function.uses.makers if (root := memory.get(name, name)) in roots}


def is_view(op: OpPart, graph: Graph) -> bool:
    """Whether all results of a part of an operator are views: it launches no kernel."""
    views = views_in(op, graph)
    return all(v.name in views for v in op.results)


def views_in(op: OpPart, graph: Graph) -> dict[Name, Name]:
    """The results of a part of an operator that are views, each with the operand that it is a view of. A kernel of the
    runtime makes new tensors, also of an operator whose own call gives views."""
    views = graph.views.get(op.operator)
    if op.kernel.function or views is None:
        return {}
    reads = dict(zip((o.value for o in graph.by_name[op.operator].inputs), op.reads, strict=True))
    names = {v.name.value: v.name for v in op.results}
    return {names[output]: reads[read] for output, read in views.items()}
