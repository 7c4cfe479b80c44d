"""Writes a function of the program as Python: calls of its layers' functions, and its other instructions in line.

A section that is a layer, or is recomputed, is a Python function of its own, written once for each kind. It gets the
layer's path as `prefix`, and names weights as in the layer: `w["ln_1.weight"]` of `transformer.h.3`. The function
itself has a decorator, `@block(...)`, that tells the runtime its inputs, outputs and indices in time.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache, partial

from ssdsl.codegen.body import Body, attending
from ssdsl.codegen.lifetimes import Lifetimes
from ssdsl.codegen.python_words import quoted, quoted_tuple, tuple_of
from ssdsl.codegen.run_text import add_run
from ssdsl.codegen.scope import FileScope, RunText, SectionText, WeightTexts
from ssdsl.ir.comm import AllReduce, Exchange
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    FunctionInput,
    FunctionOutput,
    Merge,
    OpPart,
    Section,
    Write,
    reads_of,
)
from ssdsl.ir.value import Name
from ssdsl.model.dims.layers import module_of


def function_text(function: Function, scope: FileScope) -> str:
    """The text of the decorated function; adds the functions of its sections to the scope."""
    body = scope.body(function, "", scope.names, scope.group)
    given = [*(i.var.name for i in function.inputs), *(p.var.name for p in function.prepared)]
    body.outside = {n: body.names.name(f"in {n}", n.value) for n in given}
    body.departing = frozenset(o.name for o in function.outputs if o.in_flight)
    leaving = cache(function.leaving)
    ends = Lifetimes.of(function, scope.program.graph)
    sizes = [f"    n_{t.name} = {t.sizes}[{t.name}]" for t in function.time if t.sizes]
    block, begins = scope.block(function.number), 3 + len(sizes)
    for number, section in enumerate(function.sections):
        if section.is_apart:
            names = section.names()
            _call(function, scope, body, number, names, section_text(function, number, names, scope, leaving, ends))
        else:
            runs = write(body, section, leaving()[number], partial(ends.inside, number), function, scope)
            for run in runs:
                scope.note(run.name, 1, run.lines, function.number)
                scope.note(block, begins, {run.call: run.first}, function.number, calls=True)
        if number + 1 < len(function.sections):
            body.drop(ends.behind(number))
    scope.note(block, begins, body.instructions, function.number)
    inline = (n for s in function.sections if not s.is_apart for n in s.names())
    weights = WeightTexts(scope.common, function, "").among(inline)
    scope.describe(block, function, {word: n for n, word in body.outside.items()} | weights)
    outputs = "".join(f"{body.output(o)}, " for o in function.outputs).removesuffix(" ")
    lines = [
        *_decorator(function),
        f"def {block}({', '.join([*body.outside.values(), 'weights', *(t.name for t in function.time)])}):",
        f'    """{_about(function, scope)}"""',
        *sizes,
        "    with weights.under() as w:",
        *(f"        {line}" for line in body.lines),
        f"        return ({outputs})",
    ]
    return "\n".join(lines)


def _about(function: Function, scope: FileScope) -> str:
    """The docstring: `transformer.h.2.ln_1 ... lm_head: 73 operators.`"""
    paths = [scope.program.graph.by_name[op.operator].path for op in function.operators()]
    named = [p for p in paths if p] or ["the model itself"]
    between = named[0] if named[0] == named[-1] else f"{named[0]} ... {named[-1]}"
    parts = scope.program.plan.of(function.operators()[0].operator).selected
    return f"{between}{parts}: {len(paths)} operator{'s' if len(paths) > 1 else ''}."


# -- sections ----------------------------------------------------------------------------------------------------------


def _call(
    function: Function, scope: FileScope, outer: Body, number: int, names: tuple[Name, ...], called: SectionText
) -> None:
    """Adds the call of a section's function; the scope has one function for equal texts. `names` are the section's."""
    section = function.sections[number]
    if called.text not in scope.functions:
        scope.functions[called.text] = scope.names.unused(_layer_word(section.layer))
    name = scope.functions[called.text]
    for within, first, lines in ((name, 2, called.lines), *((run, 1, lines) for run, lines in called.runs)):
        instructions = {line: section.body[n] for line, n in lines.items()}
        scope.note(within, first, instructions, function.number, section.layer)
    runs_called = {line: section.body[n] for line, n in called.calls.items()}
    scope.note(name, 2, runs_called, function.number, section.layer, calls=True)
    reads = {word: names[n] for word, n in called.outside.items()}
    scope.describe(name, function, reads | WeightTexts(scope.common, function, section.layer).among(names))
    given = map(outer.read, reads.values())
    arguments = [*given, "weights", quoted(section.layer), *time_of(function)]
    if section.recompute:
        runner = "checkpoint" if function.backward is Backward.WHOLE else "checkpoint_halves"
        made = [str(k) for k, n in enumerate(called.values) if names[n] in section.again]
        again = [f"again={tuple_of(made)}"] if made else []
        call = f"{runner}({', '.join([name, *arguments, *again])})"
    elif section.on_host:
        call = f"on_host({', '.join([name, *arguments])})"
    else:
        call = f"{name}({', '.join(arguments)})"
    targets = [outer.make(names[n], "y") for n in called.values]
    outer.call(f"{', '.join(targets)} = {call}" if targets else call)


def _layer_word(layer: str) -> str:
    """The name of a layer's functions: its path without numbers (`transformer_h`)."""
    return "_".join(p for p in module_of(layer).split(".") if not p.isdigit()) or "root"


# -- the decorator -----------------------------------------------------------------------------------------------------


def _decorator(function: Function) -> Iterator[str]:
    counts = ", ".join(f"{quoted(t.name)}: {t.parts}" for t in function.time)
    yield "@block("
    yield f"    number={function.number},"
    yield f"    time={{{counts}}},"
    yield from _listing("inputs", [_input(i, own=i.producer == function.number) for i in function.inputs])
    yield f"    prepared={quoted_tuple([str(p.source) for p in function.prepared])},"
    yield from _listing("outputs", [_output(o) for o in function.outputs])
    if function.loss is not None:
        yield f"    loss={function.loss},"
    if function.backward is not Backward.WHOLE:
        yield f"    backward={quoted(function.backward.value)},"
    if function.again is not None:
        yield "    twice=True,"
    if any(s.again or any(isinstance(i, Conversion) and i.again for i in s.body) for s in function.sections):
        yield "    again=True,"
    for name, groups in (("gathers", function.ahead.forward), ("gathers_again", function.ahead.backward)):
        if groups:
            yield f"    {name}={groups},"
    yield ")"


def _input(given: FunctionInput, *, own: bool) -> str:
    parts = [quoted(given.slot)]
    if given.time:
        parts.append(f"time={quoted_tuple([t.name for t in given.time])}")
    if own:
        (merge,) = given.merges
        parts.append(f"earlier={quoted(merge.axes[0])}")
    elif given.merges:
        parts.append(f"joins=({', '.join(_join(m, given) for m in given.merges)},)")
    if not given.gradient:
        parts.append("gradient=False")
    return f"Input({', '.join(parts)})"


def _join(merge: Merge, given: FunctionInput) -> str:
    """The merge of an input that another function made."""
    index = next(t for t in given.time if t.name in merge.axes)
    parts = [quoted(index.name), str(index.parts)]
    if not isinstance(merge, AllReduce):
        cut = merge.source
        parts += [f"dim={cut.dim}", f"outer={cut.outer}", *([] if cut.at is None else [f"at={cut.at}"])]
    if isinstance(merge, Exchange):
        parts.append(f"reads={merge.target.at}")
    return f"Join({', '.join(parts)})"


def _output(output: FunctionOutput) -> str:
    parts = [quoted(output.slot)]
    parts += [] if output.gradient else ["gradient=False"]
    parts += [] if output.read else ["read=False"]
    parts += ["again=True"] if output.again else []
    return f"Output({', '.join(parts)})"


def _listing(name: str, items: list[str]) -> Iterator[str]:
    if not items:
        yield f"    {name}=(),"
    else:
        yield f"    {name}=("
        yield from (f"        {item}," for item in items)
        yield "    ),"


# -- sections as functions ---------------------------------------------------------------------------------------------


def section_text(
    function: Function,
    number: int,
    names: tuple[Name, ...],
    scope: FileScope,
    leaving: Callable[[], list[frozenset[Name]]],
    ends: Lifetimes,
) -> SectionText:
    """The text of a section of a function; adds the process groups that it uses to the scope. `names` are the
    section's; `leaving` gives, by section, the values that it makes for others."""
    section = function.sections[number]
    known = scope.sections if section.compiled else scope.common.sections
    key = None if section.kind is None else _key(function, section, names, scope)
    if (text := known.get(key)) is not None:
        for axes in text.groups:
            scope.group(axes)
        return text
    text = _written(function, number, names, scope, leaving()[number], ends)
    if key is not None:
        known[key] = text
    return text


def _key(function: Function, section: Section, names: tuple[Name, ...], scope: FileScope) -> Hashable:
    """Everything that the text depends on: the kind, the mesh, by which groups are named, and the texts of weights."""
    weights = WeightTexts(scope.common, function, section.layer)
    words = tuple(map(weights.word, names))
    written = tuple(weights.changed(i.buffer) for i in section.body if isinstance(i, Write))
    return section.kind, scope.role.submesh.mesh, words, written


def _written(
    function: Function,
    number: int,
    names: tuple[Name, ...],
    scope: FileScope,
    leaving: frozenset[Name],
    ends: Lifetimes,
) -> SectionText:
    section = function.sections[number]
    groups: dict[tuple[str, ...], None] = {}

    def group(axes: tuple[str, ...]) -> str:
        groups[axes] = None
        return scope.group(axes)

    body = scope.body(function, section.layer, scope.words, group)
    runs = write(body, section, leaving, partial(ends.inside, number), function, scope)
    values = [n for n in body.made if n in leaving]
    lines = [
        f"({', '.join([*body.outside.values(), 'weights', 'prefix', *time_of(function)])}):",
        "    with weights.under(prefix) as w:",
        *(f"        {line}" for line in body.lines),
        f"        return {', '.join(body.made[n] for n in values) or '()'}",
    ]
    place = {name: k for k, name in enumerate(names)}
    numbers = {instr: k for k, instr in enumerate(section.body)}
    return SectionText(
        "\n".join(lines),
        {word: place[n] for n, word in body.outside.items()},
        tuple(place[n] for n in values),
        {line: numbers[instr] for line, instr in body.instructions.items()},
        tuple(groups),
        tuple((run.name, {line: numbers[op] for line, op in run.lines.items()}) for run in runs),
        {run.call: numbers[run.first] for run in runs},
    )


def time_of(function: Function) -> list[str]:
    """The arguments that tell a function its indices in time: `m`, and `n_m` if the parts are unequal."""
    return [t.name for t in function.time] + [f"n_{t.name}" for t in function.time if t.sizes]


def write(
    body: Body,
    section: Section,
    leaving: frozenset[Name],
    ended: Callable[[int], Iterable[Name]],
    function: Function,
    scope: FileScope,
) -> list[RunText]:
    """Adds the lines of a section to a body; returns its compiled runs. After each line but the last, it deletes the
    names that are not read any more: `ended` gives them by the number of the instruction."""
    used = leaving | {n for instr in section.body for n in reads_of(instr)}
    body.words = attending(section.body, scope.program.graph.by_name)
    runs: list[RunText] = []
    number = 0
    while number < len(section.body):
        start, number = number, number + 1
        for conversion in section.starts_at(start):
            body.start(conversion)
        if (run := section.run_at(start)) is None:
            body.add(section.body[start], used)
        else:
            _, number = run
            rest = {n for k, i in enumerate(section.body) if not start <= k < number for n in reads_of(i)}
            ops = [i for i in section.body[start:number] if isinstance(i, OpPart)]
            runs.append(add_run(body, ops, leaving | rest, function, section.layer, scope))
        if number < len(section.body):
            body.drop(n for k in range(start, number) for n in ended(k) if n in used)
    return runs
