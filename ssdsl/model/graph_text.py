"""Prints a graph: `%y[batch, ffn] : float32* = linear aten::addmm(%bias[ffn] once, %x[batch, hidden], ...)`.

The text is complete: two graphs with equal text are equal, except for the lines of the model's code that operators come
from. An axis is the product of its factors, such as `heads·head_dim`, or 1; a star marks values that may have a
gradient. A dimension has its name in the operator: `seq.keys (seq#2) 16` is one of the second class named `seq`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ssdsl.model.constant import Constant
from ssdsl.model.graph import Graph, Operand, Operator, Origin, Ref, Stage, Value
from ssdsl.runtime.program.returned import Leaf

FEW = 16  # constants of up to so many numbers are shown; of larger ones, a checksum

Block = list[str]


def graph_text(graph: Graph) -> str:
    """The whole text; it ends in a line end."""
    return "\n\n".join("\n".join(block) for block in graph_blocks(graph)) + "\n"


def graph_blocks(graph: Graph) -> Iterator[Block]:
    """The parts of the text, each a list of lines: dimensions, results, given values, then the operators by module."""
    words = _Words(graph)
    yield [f"graph of {graph.name}", f"classes {', '.join(f'{cls} {word}' for cls, word in words.classes.items())}"]
    outputs = (f"output {name} = %{value}" for name, value in graph.outputs.items())
    updates = (f"update {buffer} = %{value}" for buffer, value in graph.updates.items())
    loss = f"loss = %{graph.loss}" + (f" = {' + '.join(f'%{name}' for name in graph.addends)}" if graph.addends else "")
    inserted = (f"inserted {name}" for name in sorted(graph.inserted))
    yield [loss, *outputs, *map(_returned, graph.returned), *updates, *inserted]
    made = {o.value for operator in graph.operators for o in operator.outputs}
    given = (v for v in graph.values.values() if v.origin is not Origin.OPERATOR or v.name not in made)
    yield [*map(words.given, given), *(_constant(name, tensor) for name, tensor in graph.constants.items())]
    block: Block = []
    for before, operator in zip((None, *graph.operators), graph.operators, strict=False):
        if before is None or before.path != operator.path:
            yield from [block] if block else []
            block = [f"module {operator.module}"]
        block += (f"  {line}" for line in words.operator(operator))
    yield block


def _returned(leaf: Leaf) -> str:
    path = ", ".join(f"{step.kind} {step.key}" for step in leaf.path)
    return f"returned {path}{f': {leaf.what}' if leaf.what else ''}"


class _Words:
    """The words for values and operators of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.classes = dict(zip(graph.dim_names, _numbered(graph.dim_names.values(), "#{}"), strict=True))

    def given(self, value: Value) -> str:
        """A value that no operator makes, with the classes and the sizes of its factors."""
        factors = (
            [f"{self.classes[cls]} {size}" for cls, size in zip(*axis, strict=True)]
            for axis in zip(value.factors, value.sizes, strict=True)
        )
        axes = ", ".join("·".join(axis) or "1" for axis in factors)
        named = f" named ({', '.join(names)})" if (names := self.graph.axes.get(value.name)) is not None else ""
        return f"{value.origin} {value.name} : {_type(value)}[{axes}]{_odd_shape(value)}{named}"

    def operator(self, operator: Operator) -> Iterator[str]:
        """The line of the call; below it its dimensions and all other facts."""
        dims, refs = [*_numbered((d.name for d in operator.dims), "'{}")], operator.refs()
        reads = [_operand(i, dims) for i in operator.inputs]
        is_told = refs == tuple(i.value for i in operator.inputs)
        operands = iter(reads if is_told else [f"%{name}" for name in refs])
        arguments = [_argument(a, operands) for a in operator.args[1:]]
        arguments += [f"{name}={_argument(a, operands)}" for name, a in operator.kwargs]
        results = ", ".join(self._result(operator, o, dims) for o in operator.outputs)
        name = "" if [o.value for o in operator.outputs] == [operator.name] else f" [{operator.name}]"
        yield f"{results} = {_called(operator)}({', '.join(arguments)}){name}"
        facts = [
            f"stage {operator.stage}" if operator.stage is not Stage.COMPUTE else "",
            f"over {', '.join(self._over(operator, dims))}" if dims else "",
            f"reads {', '.join(reads)}" if reads and not is_told else "",
            f"flops {operator.flops}" if operator.flops else "",
            f"in memory {operator.orders}" if operator.orders else "",
        ]
        if said := "; ".join(filter(None, facts)):
            yield f"  {said}"

    def _over(self, operator: Operator, words: Sequence[str]) -> Iterator[str]:
        """Each dimension with its class and size, and with marks where it is not split like any other."""
        for word, dim in zip(words, operator.dims, strict=True):
            cls, window = self.classes[dim.cls], dim.window
            marks = [word, f"({cls})" if cls != word else "", f"{dim.size}", "combined" if dim.combined else ""]
            marks.append(f"beside {words[dim.beside]}" if dim.beside is not None else "")
            marks.append(f"by {window.shape} of {words[window.of]}" if window is not None else "")
            marks.append(f"whole: {dim.fixed}" if dim.fixed else "")
            yield " ".join(filter(None, marks))

    def _result(self, operator: Operator, operand: Operand, dims: Sequence[str]) -> str:
        """A result with its type, and with its factors where they differ from the operator's dimensions."""
        value = self.graph.values[operand.value]
        factors = tuple(tuple(operator.dims[d].cls for d in axis) for axis in operand.axes)
        sizes = tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes)
        other = "" if (factors, sizes) == (value.factors, value.sizes) else f" of {value.factors} {value.sizes}"
        return f"{_operand(operand, dims)} : {_type(value)}{other}{_odd_shape(value)}"


def _called(operator: Operator) -> str:
    """The kind and the target, `linear aten::addmm`; `aten::relu` alone, if the kind is torch's name."""
    kind = "" if operator.kind == operator.target.partition("::")[2].partition(".")[0] else f"{operator.kind} "
    function = str(operator.args[0])
    by = "" if function.removesuffix(".default").replace(".", "::", 1) == operator.target else f" by {function}"
    return f"{kind}{operator.target}{by}"


def _operand(operand: Operand, dims: Sequence[str]) -> str:
    axes = ", ".join("·".join(dims[d] for d in axis) or "1" for axis in operand.axes)
    return f"%{operand.value}[{axes}]{' once' if operand.once else ''}"


def _argument(item: Any, operands: Iterator[str]) -> str:
    match item:
        case Ref():
            return next(operands)
        case list():
            return f"[{', '.join(_argument(i, operands) for i in item)}]"
        case tuple():
            return f"({', '.join(_argument(i, operands) for i in item)})"
    return repr(item)


def _type(value: Value) -> str:
    return f"{value.dtype}{'*' if value.differentiable else ''}"


def _odd_shape(value: Value) -> str:
    """The shape, where it does not follow from the factors."""
    return "" if value.shape == tuple(map(math.prod, value.sizes)) else f" shape {value.shape}"


def _constant(name: str, tensor: Constant) -> str:
    """A stored tensor: its numbers if they are few."""
    if tensor.data is None:
        numbers = "without numbers"
    elif math.prod(tensor.shape) <= FEW:
        numbers = f"{tensor.numbers()}"
    else:
        numbers = f"sha256 {hashlib.sha256(tensor.data).hexdigest()[:16]}"
    return f"stored {name} = torch.{tensor.dtype}{[*tensor.shape]} {numbers}"


def _numbered(names: Iterable[str], behind: str) -> Iterator[str]:
    """The names; the second and later uses of a name get a number.

    >>> [*_numbered(["seq", "heads", "seq"], "#{}")]
    ['seq', 'heads', 'seq#2']
    """
    times: Counter[str] = Counter()
    for name in names:
        times[name] += 1
        yield name + (behind.format(times[name]) if times[name] > 1 else "")
