"""Writes the comments above a function of a role's file: the dimensions of what it reads, with the axes and indices in
time that cut them, and the sizes on a device.

    # x                   [batch/dp/m 2, seq 64, hidden 128]
    # ln_1.weight and 5 more  [hidden 128]
    # attn.c_attn.weight  [hidden 128, 3·heads/tp·head_dim 192]
"""

import itertools
from collections.abc import Iterator, Mapping

from ssdsl.codegen.origins import either
from ssdsl.ir.layout import PARTIAL
from ssdsl.ir.text.types import Axes, coordinate_text
from ssdsl.ir.value import Var, digits_of
from ssdsl.model.graph import Graph
from ssdsl.text.layouts import LayoutAxis, layout_words

WIDTH = 32  # of aligned names


def shape_text(var: Var, graph: Graph, axes: Axes) -> str:
    """`[hidden 128, 3·heads/tp·head_dim 192]`: the factors of each axis by name, or by size if they have none, the
    coordinates that cut each of them, and the local size; then the axes over which the tensor is a sum to come."""
    value = graph.values[var.name.value]
    cuts: dict[int, list[str]] = {}
    for coordinate, shard in sorted(digits_of(var.type, axes), key=lambda digit: -digit[1].digit.stride):
        cuts.setdefault(shard.factor, []).append(coordinate_text(coordinate))
    words, factors = [], itertools.count()
    for classes, sizes, local in zip(value.factors, value.sizes, var.shape, strict=True):
        named = (graph.dim_names.get(number, str(size)) for number, size in zip(classes, sizes, strict=True))
        words.append(LayoutAxis(tuple((name, tuple(cuts.get(next(factors), ()))) for name in named), local))
    sums = [a for (a, _), place in zip(axes, var.type.layout.places, strict=True) if place is PARTIAL]
    return layout_words(words, [*sums, *var.type.owed])


def shape_lines(shapes: Mapping[str, list[str]]) -> Iterator[str]:
    """The comments of a function; `shapes` has the text of each name for each layer. Names with equal texts share a
    line."""
    alike: dict[str, list[str]] = {}
    for name, texts in shapes.items():
        alike.setdefault(either(texts), []).append(name)
    lines = [(_listed(names), text) for text, names in alike.items()]
    width = max((len(names) for names, _ in lines if len(names) <= WIDTH), default=0)
    yield from (f"# {names:{width}}  {text}" for names, text in lines)


def _listed(names: list[str]) -> str:
    """`ln_1.weight, ln_1.bias`, `ln_1.weight and 5 more`."""
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"
