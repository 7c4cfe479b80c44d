"""The text of functions and prologues: a line for each local value, `%y@1 = all_reduce<tp>(1024) %y : f32[8, 128]`."""

from collections.abc import Container, Iterable, Iterator
from typing import assert_never

from ssdsl.ir.function import (
    Carried,
    Conversion,
    Function,
    FunctionInput,
    FunctionOutput,
    Instr,
    Kernel,
    Offset,
    OpPart,
    Prologue,
    Section,
    Split,
    WindowPart,
    Write,
    saved_names,
)
from ssdsl.ir.text.comm import steps_text
from ssdsl.ir.text.types import Axes, coordinate_text, digits_text, names_text, regions_text, time_text, var_text
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph, Operator, Order
from ssdsl.model.memory.storage import is_plain
from ssdsl.plan.plan import Plan


def function_lines(function: Function, plan: Plan, names: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines of a function; `names` are those of all functions."""
    graph = plan.graph
    yield header(function, plan)
    yield from map(_inside, ahead_lines(function))
    yield from map(_inside, given_lines(function, graph, names))
    for section in function.sections:
        yield from map(_inside, section_lines(section, graph, function.submesh.axes))
    yield from (f"  {_output(o, k == function.loss)}" for k, o in enumerate(function.outputs))


def header(function: Function, plan: Plan) -> str:
    """The first line of a function; `block0[way = 1]` has parts that the plan names."""
    parts = next((plan.of(op.operator).selected for op in function.operators()), "")
    where = f"{function.name}{parts} on {function.submesh}{time_text(function.time)}"
    again = "" if function.again is None else f" again {function.again}"
    return f"function {where} backward {function.backward.value} stage {function.stage}{again}"


def ahead_lines(function: Function) -> Iterator[str]:
    """Yields a line for the order in which a function gathers weights, if some start ahead."""
    orders = [("ahead", function.ahead.forward), ("backward", function.ahead.backward)]
    if found := [f"{word} {', '.join(map(_group, order))}" for word, order in orders if order]:
        yield "; ".join(found)


def _group(flats: tuple[int, ...]) -> str:
    return " + ".join(f"flat{n}" for n in flats)


def given_lines(function: Function, graph: Graph, names: tuple[str, ...]) -> Iterator[str]:
    """Yields a line for each value that enters a function: inputs, prepared values, parameters."""
    axes = function.submesh.axes
    for given in function.inputs:
        yield f"input %{given.var.name} = {_input(given, names)} : {var_text(given.var, graph, axes)}"
    for prepared in function.prepared:
        yield f"prepared %{prepared.var.name} = %{prepared.source} : {var_text(prepared.var, graph, axes)}"
    for parameter in function.parameters:
        yield f"parameter %{parameter.var.name} : {var_text(parameter.var, graph, axes)}"


def section_lines(section: Section, graph: Graph, axes: Axes) -> Iterator[str]:
    """Yields the lines of a section: its header, with the flat parameters that it gathers and awaits, and its
    instructions."""
    words = [
        f"section {section.layer}".rstrip(),
        "recompute" if section.recompute else "",
        "on host" if section.on_host else "",
    ]
    words.append(f"again {_names(section.again)}" if section.again else "")
    runs = ", ".join(f"{start}..{stop}" for start, stop in section.compiled)
    words.append(f"compiled {runs}" if runs else "")
    words += [f"{verb} {', '.join(f'flat{n}' for n in numbers)}" for verb, numbers in _of_flats(section) if numbers]
    yield " ".join(filter(None, words))
    lines = body_lines(section.body, graph, axes, section.layer, section.awaited)
    for number, line in enumerate(lines):
        yield from (f"  start %{c.result.name} of %{c.source}" for c in section.starts_at(number))
        yield f"  {line}"


def _of_flats(section: Section) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ("gathers", section.gathers), ("awaits", section.awaits)


def body_lines(
    body: Iterable[Instr], graph: Graph, axes: Axes, layer: str = "", awaited: Container[int] = ()
) -> Iterator[str]:
    """Yields a line for each instruction; an operator's module stands behind it if it is not the section's. `awaited`
    are the numbers of conversions that started before."""
    for number, instr in enumerate(body):
        match instr:
            case OpPart():
                operator = graph.by_name[instr.operator]
                left = ", ".join(f"%{v.name}" for v in instr.results)
                types = "; ".join(var_text(v, graph, axes) for v in instr.results)
                path = f"  # {operator.path}" if operator.path not in ("", layer) else ""
                yield f"{left} = {_op(instr, operator)} : {types}{path}"
            case Conversion():
                types = var_text(instr.result, graph, axes)
                back = f"; backward {steps_text(instr.backward, instr.in_place[1])}" if instr.backward else ""
                steps = steps_text(instr.forward, instr.in_place[0])
                word = "behind" if any(s.in_time for s in instr.forward) else "of rows by"
                also = f" {word} ({_names(instr.also)})" if instr.also else ""
                again = "; again in backward" if instr.again else ""
                wait = "wait " if number in awaited else ""
                yield f"%{instr.result.name} = {wait}{steps}{also} %{instr.source} : {types}{back}{again}"
            case Write():
                parts = "".join(f" at {steps_text((step,))}" for step in instr.slices)
                yield f"write {instr.buffer}{parts} = %{instr.source}"
            case _:
                assert_never(instr)


def prologue_lines(prologue: Prologue, graph: Graph) -> Iterator[str]:
    """Yields the lines of a prologue; they do not say `no gradient`, as nothing in it has one."""
    axes = prologue.submesh.axes
    yield f"prologue on {prologue.submesh}"
    if prologue.constants:
        yield f"  constants {', '.join(prologue.constants)}"
    lines = [*(f"given %{v.name} : {var_text(v, graph, axes)}" for v in prologue.given)]
    for line in (*lines, *body_lines(prologue.body, graph, axes)):
        yield f"  {line.replace('; no gradient', '')}"
    yield f"  return {_names(prologue.results)}"


# -- one line ----------------------------------------------------------------------------------------------------------


def _op(op: OpPart, operator: Operator) -> str:
    name = "" if op.results and op.results[0].name == Name(op.operator) else f" [{op.operator}]"
    words = [f"{_kernel(op.kernel, operator.kind)}({_operands(op)}){name}"]
    if over := splits_text(op.splits, operator):
        words.append(over)
    if op.first:
        words.append(f"addend where {' = '.join(c.name for c in op.first)} = 0")
    if op.sides is not None:
        words.append(f"sides {names_text(s.value for s in op.sides)}")
    values = (f"%{name}" for name in dict.fromkeys(saved_names(op, op.saved)))
    if saved := [*values, *(e.what for e in op.saved.extras)]:
        words.append(f"saves {', '.join(saved)}")
    return " ".join(words)


def _operands(op: OpPart) -> str:
    """The names of the operands; with their order of axes for an operator that asks for it: `%x contiguous, %y in order
    (0, 2, 1)`."""
    laid = [f" {_order(order)}" for order in op.orders] or [""] * len(op.reads)
    return ", ".join(f"%{read}{order}" for read, order in zip(op.reads, laid, strict=True))


def _order(order: Order) -> str:
    return "contiguous" if is_plain(order) else f"in order {order}"


def splits_text(splits: Iterable[Split | Carried], operator: Operator) -> str:
    """The splits of an operator, and the partial sums that it carries: `over (batch: dp·m) adds {m: %sum}`."""
    own = [s for s in splits if isinstance(s, Split)]
    digits = [(coordinate_text(s.coordinate), s.dim, s.digit) for s in own if s.digit.at is None]
    even = digits_text(digits, [d.name for d in operator.dims], [d.size for d in operator.dims])
    regions = (
        f"{operator.dims[s.dim].name}: {coordinate_text(s.coordinate)} {regions_text(s.digit.at)}"
        for s in own
        if s.digit.at
    )
    cut = ", ".join(filter(None, (even, *regions)))
    sums = [f"{coordinate_text(s.coordinate)}: {_names(sorted(s.operands))}" for s in splits if isinstance(s, Carried)]
    return " ".join(filter(None, (f"over ({cut})" if cut else "", f"adds {{{', '.join(sums)}}}" if sums else "")))


def _kernel(kernel: Kernel, kind: str) -> str:
    axes = f"<{', '.join(kernel.axes)}>" if kernel.axes else ""
    told = [f"from {starts}"] if (starts := _sum(kernel.offsets)) else []
    told += [f"behind {parts} parts"] if (parts := _sum(kernel.before)) else []
    told += [f"{_of_operand(w)}axis {w.axis} of {w.size} by {coordinate_text(w.coordinate)}" for w in kernel.windows]
    told += [f"from {_sum(place.offsets) or 0} of {place.size}" for place in kernel.places]
    if (region := kernel.region) is not None:
        told.append(f"axis {region.axis} of {'·'.join(map(str, region.of))} at {regions_text(region.runs)}")
    if (queries := kernel.queries) is not None:
        told.append(f"queries by {coordinate_text(queries.coordinate)} at {regions_text(queries.runs)}")
    told += [f"merging {', '.join(kernel.merging)}"] if kernel.merging else []
    told += [f"of {kernel.size}"] if kernel.size is not None else []
    told += [f"{kernel.count} combined"] if kernel.count is not None else []
    inside = "; ".join(told)
    return f"{kernel.function or kind}{axes}{f'[{inside}]' if inside else ''}"


def _of_operand(window: WindowPart) -> str:
    """Which operand is read by a window, unless it is the first."""
    return f"operand {window.operand}, " if window.operand else ""


def _sum(offsets: Iterable[Offset]) -> str:
    return " + ".join(
        f"{coordinate_text(o.coordinate)}·{o.digit.stride}"
        if o.digit.at is None
        else f"sum of the parts before {coordinate_text(o.coordinate)}"
        for o in offsets
    )


def _input(given: FunctionInput, names: tuple[str, ...]) -> str:
    marks = "".join(f", {steps_text((m,))}" for m in given.merges) + (", in flight" if given.in_flight else "")
    return f'slot "{given.slot}" of {names[given.producer]}{time_text(given.time)}{marks}'


def _output(output: FunctionOutput, is_loss: bool) -> str:
    marks = "" if output.gradient else " no gradient"
    marks += " gradient by wgrad" if output.wgrad_only else ""
    marks += "" if output.read else " for the report"
    marks += " in flight" if output.in_flight else ""
    marks += " again" if output.again else ""
    return f'{"loss" if is_loss else "return"} %{output.name} in slot "{output.slot}"{marks}'


def _names(names: Iterable[object]) -> str:
    return ", ".join(f"%{name}" for name in names)


def _inside(line: str) -> str:
    return f"  {line}"
