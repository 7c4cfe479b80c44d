"""Writes a compiled run as a function of tensors, and its call.

    @compiled
    def transformer_h_ln_1(x, weight, bias):
        layer_norm = F.layer_norm(x, [128], weight, bias, 1e-05)
        reshape = layer_norm.reshape(128, 128)
        return reshape

It is named after the modules of its operators, and written once for equal texts: its parameters are named by their
order, weights by the last word of their name. What differs between devices is an argument: `first(bias, tp)`, or
`tp.index` where the sizes of parts differ.
"""

import re
from collections.abc import Iterator, Sequence, Set
from itertools import takewhile

from ssdsl.codegen.body import Body
from ssdsl.codegen.expressions import once_text
from ssdsl.codegen.scope import FileScope, RunText
from ssdsl.ir.function import Function, Instr, OpPart
from ssdsl.ir.value import Name, names_of
from ssdsl.model.dims.layers import module_of
from ssdsl.record import replace

INDEX = re.compile(r"\b(\w+)\.index\b")
LAST = re.compile(r"(\w+)\W*$")  # the last word of a weight's text


def add_run(
    outer: Body, ops: Sequence[OpPart], leaving: Set[Name], function: Function, layer: str, scope: FileScope
) -> RunText:
    """Adds the call of a run to a body, and its function to the scope; `leaving` are the results that are read
    outside."""
    body = scope.body(function, layer, scope.words, outer.group)
    body.weights = lambda name: None  # they are arguments
    body.words = outer.words
    used = leaving | {name for op in ops for name in op.reads}
    activations: dict[str, str] = {}  # by parameter, its argument
    weights: dict[str, str] = {}
    reads: dict[str, Name] = {}
    originals: dict[Instr, OpPart] = {}
    for op in ops:
        told = _without_first(op, scope)
        originals[told] = op
        for name, alias in zip(op.reads, told.reads, strict=True):
            if name in body.made or alias in body.outside:
                continue
            text = outer.read(name)
            last = LAST.search(text) if outer.weights(name) is not None else None
            word = last[1] if last is not None else f"x{len(activations) or ''}"
            body.outside[alias] = parameter = body.names.unused(word)
            into = activations if last is None else weights
            reads[parameter] = name
            into[parameter] = once_text(text, op.first, outer.group) if alias != name else text
        body.add(told, frozenset(used))
    results = [n for n in body.made if n in leaving]
    lines, further = _indices(body.lines, scope, function)
    arguments = activations | weights | further
    head = f"({', '.join(arguments)}):"
    end = f"    return {', '.join(body.made[n] for n in results) or '()'}"
    text = "\n".join([head, *(f"    {line}" for line in lines), end])
    called = scope.run(text, _word(ops, layer, scope))
    scope.describe(called, function, {word: reads[word] for word in (*activations, *weights)})
    places = {line: originals[told] for line, told in body.instructions.items()}
    targets = ", ".join(outer.make(n, body.made[n].rstrip("_0123456789") or "x") for n in results)
    call = f"{called}({', '.join(arguments.values())})"
    line = len(outer.lines)
    outer.call(f"{targets} = {call}" if targets else call)
    return RunText(called, places, line)


def _without_first(op: OpPart, scope: FileScope) -> OpPart:
    """The operator without the choice of the part that adds an operand: that is another value, chosen by the caller."""
    if not op.first:
        return op
    operands = scope.program.graph.by_name[op.operator].inputs
    along = ", ".join(name for coordinate in op.first for name in names_of(coordinate))
    reads = (
        Name(f"{name.value} of the first along {along}", name.version) if operand.once else name
        for name, operand in zip(op.reads, operands, strict=True)
    )
    return replace(op, first=(), reads=tuple(reads))


def _indices(lines: Sequence[str], scope: FileScope, function: Function) -> tuple[list[str], dict[str, str]]:
    """The lines, with the places on the mesh and the indices in time that they read as parameters; and these, each with
    its argument."""
    further: dict[str, str] = {}
    written = []
    for line in lines:
        for group in INDEX.findall(line):
            further[f"{group}_index"] = f"{group}.index"
        written.append(INDEX.sub(r"\1_index", line))
    times = (word for t in function.time for word in (t.name, f"n_{t.name}"))
    found = {word: word for word in times if any(re.search(rf"\b{word}\b", line) for line in written)}
    return written, further | found


def _word(ops: Sequence[OpPart], layer: str, scope: FileScope) -> str:
    """The name of a run: that of the innermost module that has all its operators, or of the first and the last one."""
    paths = [scope.program.graph.by_name[op.operator].path for op in ops]
    inside = [list(_words(path.removeprefix(layer))) for path in paths]
    outer = list(_words(module_of(layer)))
    common = [words[0] for words in takewhile(lambda words: len({*words}) == 1, zip(*inside, strict=False))]
    named = [words for words in inside if words]
    if common or not named:
        return "_".join([*outer, *common]) or "model"
    first, last = named[0][0], named[-1][0]
    return "_".join([*outer, *([first] if first == last else [first, "to", last])])


def _words(path: str) -> Iterator[str]:
    return (word for word in module_of(path).split(".") if word and not word.isdigit())
