"""Compresses results of a graph's operators: the model that a plan with `compress OPS by topk(64) along embed` trains.

Behind a result that others read stand two operators. One, beside its maker, makes a short line of each line along a
dimension; the other, beside its first reader, makes a line of numbers again (`runtime/kernels/compression.py`). So what
lies between them is what travels, wherever a plan puts them, forward and, as gradients are compressed alike, backward.

    y = linear x w              y = linear x w          y_code = encode y
    z = relu y                  y_decoded = decode y_code
                                z = relu y_decoded

What reads the result inside OPS reads it as it is, and so do the results of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ssdsl.model.graph import (
    Dim,
    Graph,
    Operand,
    Operator,
    Origin,
    Ref,
    Stage,
    Twin,
    Value,
    dims_of,
    renamed,
    twins,
)
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import SchemaParameter, Target
from ssdsl.record import Record, replace
from ssdsl.runtime.kernels.line_bytes import line_bytes

WHOLE = "it is compressed along it"
ENCODE, DECODE = "ssdsl::encode", "ssdsl::decode"


class Compressed(Record):
    """A result that is compressed along an axis, for its readers but those `inside`: it keeps the `k` largest numbers
    of each line, or all of them in eight bits."""

    maker: Twin
    result: int
    axis: int
    k: int | None
    inside: frozenset[Twin]


def code_length(size: int, itemsize: int, k: int | None) -> int:
    """The elements of a line that stands for one of `size` elements."""
    return -(-line_bytes(size, itemsize, k) // itemsize)


def compress(graph: Graph, compressed: Sequence[Compressed]) -> Graph:
    """The graph with these results compressed; not observed yet."""
    keys = {o.name: twin for twin, o in twins(graph.operators)}
    by_maker = {(c.maker, c.result): c for c in compressed}
    makers, readers = dict[str, list[Operator]](), dict[str, list[Operator]]()
    values, names = dict(graph.values), dict(graph.dim_names)
    instead: dict[tuple[str, str], str] = {}  # what a reader reads in place of a value
    for operator in graph.computing:
        for n, operand in enumerate(operator.outputs):
            how = by_maker.get((keys[operator.name], n))
            outside = [] if how is None else _outside(graph, operand.value, how, keys)
            if how is not None and outside:
                pair = _Pair(graph.values[operand.value], operator, operand, outside[0], how, 1 + max(names, default=0))
                makers.setdefault(operator.name, []).append(pair.encode)
                readers.setdefault(outside[0].name, []).append(pair.decode)
                values |= {value.name: value for value in pair.values}
                names[pair.cls] = pair.code_name
                instead |= {(reader.name, operand.value): pair.values[1].name for reader in outside}
    operators = [
        one
        for o in graph.operators
        for one in (*readers.get(o.name, ()), _reading(o, instead), *makers.get(o.name, ()))
    ]
    return replace(graph, operators=tuple(operators), values=values, dim_names=names)


def _outside(graph: Graph, value: str, how: Compressed, keys: dict[str, Twin]) -> list[Operator]:
    """The operators that read a value outside of those that are compressed, each once."""
    readers = {o.name: o for o in graph.readers.get(value, ()) if o.stage is Stage.COMPUTE}
    return [o for name, o in readers.items() if keys[name] not in how.inside]


def _reading(operator: Operator, instead: dict[tuple[str, str], str]) -> Operator:
    names = {v: new for v in operator.values if (new := instead.get((operator.name, v))) is not None}
    return replace(renamed(operator, names), signature=None, observed=None) if names else operator


@dataclass
class _Pair:
    """The two operators for a value, by its `maker` and the first of its readers outside."""

    value: Value
    maker: Operator
    operand: Operand
    reader: Operator
    how: Compressed
    cls: int  # of the dimension of codes

    def __post_init__(self) -> None:
        value, how = self.value, self.how
        dims, axes = dims_of(self.maker, self.operand)
        (along,) = axes[how.axis]
        size = value.shape[how.axis]
        length = code_length(size, value.itemsize, how.k)
        name = value.name.replace(".", "_")
        self.code_name = f"{dims[along].name}_code"
        dims[along] = replace(dims[along], fixed=WHOLE)
        dims.append(Dim(self.code_name, length, self.cls, WHOLE))
        of_code = tuple((len(dims) - 1,) if axis == (along,) else axis for axis in axes)
        code = replace(
            value,
            name=f"{name}_code",
            origin=Origin.OPERATOR,
            shape=(*value.shape[: how.axis], length, *value.shape[how.axis + 1 :]),
            factors=tuple((self.cls,) if a == how.axis else f for a, f in enumerate(value.factors)),
            sizes=tuple((length,) if a == how.axis else s for a, s in enumerate(value.sizes)),
        )
        decoded = replace(value, name=f"{name}_decoded", origin=Origin.OPERATOR)
        self.values = code, decoded
        whole, short = Operand(value.name, axes), Operand(code.name, of_code)
        self.encode = self._operator(ENCODE, self.maker, (whole, short), dims, ("x", "length", length))
        self.decode = self._operator(
            DECODE, self.reader, (short, replace(whole, value=decoded.name)), dims, ("code", "size", size)
        )

    def _operator(
        self, target: str, beside: Operator, pair: tuple[Operand, Operand], dims: list[Dim], words: tuple[str, str, int]
    ) -> Operator:
        given, made = pair
        tensor, word, number = words
        parameters = (*map(SchemaParameter, (tensor, "dim", word)), SchemaParameter("k", optional=True))
        called = (Target(target, parameters), Ref(given.value), self.how.axis, number, self.how.k)
        kind = target.partition("::")[2]
        return Operator(
            *(made.value, kind, target, beside.path, beside.source, Stage.COMPUTE, called, ()),
            *((given,), (made,), tuple(dims), ROWS[target], prod(self.value.shape)),
        )


class Code(Record):
    """How a result is compressed along a dimension: the numbers of a line that it keeps, and the bits that each number
    of a line has on its way."""

    dim: Dim
    kept: int
    bits: float


def code_of(operator: Operator, graph: Graph) -> Code | None:
    """The code that an operator makes; None for operators that do not compress."""
    if operator.target != ENCODE:
        return None
    _, _, axis, length, k = operator.args
    (dim,) = (operator.dims[d] for d in operator.inputs[0].axes[axis])
    itemsize = graph.values[operator.outputs[0].value].itemsize
    return Code(dim, dim.size if k is None else k, 8 * itemsize * length / dim.size)
