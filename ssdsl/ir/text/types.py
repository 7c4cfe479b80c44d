"""The text of types: `f32[2, 64, 128] at (batch: dp·m) partial {tp: sum}`.

`at` names, for each dimension of the logical value that is cut, the coordinates that cut it, the outermost first. A
number among them is a digit that nothing cuts: `batch: 2·m` means that each of two halves of the batch is cut by m.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from ssdsl.ir.layout import PARTIAL, Layout
from ssdsl.ir.value import Coordinate, TimeIndex, Type, Var, digits_of, names_of
from ssdsl.model.graph import Graph
from ssdsl.plan.regions import Digit, Regions, lengths_of, parts_of

Axes = tuple[tuple[str, int], ...]

DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "complex64": "c64",
}


def var_text(var: Var, graph: Graph, axes: Axes) -> str:
    """A local tensor, and its gradient if that has another type."""
    value = var.name.value
    sizes = ", ".join(map(str, var.shape))
    tensor = " ".join(filter(None, (f"{dtype_text(var.dtype)}[{sizes}]", type_text(var.type, value, graph, axes))))
    if var.gradient is None:
        return f"{tensor}; no gradient"
    if var.gradient == var.type:
        return tensor
    return f"{tensor}; gradient {gradient_text(var.type, var.gradient, value, graph, axes)}"


def type_text(type_: Type, value: str, graph: Graph, axes: Axes) -> str:
    """The region and pending sums of a type: `at (...) partial {...}`; empty for a value that is whole everywhere."""
    return " ".join(filter(None, (_region(type_, value, graph, axes), _partial(type_, axes))))


def gradient_text(type_: Type, gradient: Type, value: str, graph: Graph, axes: Axes) -> str:
    """The difference between a gradient's type and its value's: its region, if it is another one, and its pending
    sums."""
    here, there = (_region(t, value, graph, axes) for t in (type_, gradient))
    region = "" if here == there else there or "at ()"
    return " ".join(filter(None, (region, _partial(gradient, axes) or "partial {}")))


def layout_text(layout: Layout, value: str, graph: Graph, axes: Axes) -> str:
    """`type_text` of a layout, which has nothing in time."""
    return type_text(Type(layout), value, graph, axes)


def dtype_text(dtype: str) -> str:
    """`f32`, as MLIR and JAX write it."""
    return DTYPES.get(dtype, dtype)


def time_text(time: Iterable[TimeIndex]) -> str:
    """Indices in time with their parts: ` over (m: 4, k: 3 + 5)`; empty if there are none."""
    words = [f"{t.name}: {' + '.join(map(str, t.sizes)) if t.sizes else t.parts}" for t in time]
    return f" over ({', '.join(words)})" if words else ""


def names_text(names: Iterable[str]) -> str:
    """Names in parentheses: `(a, b)`."""
    return f"({', '.join(names)})"


def digits_text(digits: Sequence[tuple[str, int, Digit]], names: Sequence[str], sizes: Sequence[int]) -> str:
    """For each dimension, the coordinates that cut it: `batch: dp·m, ffn: tp`. `digits` are plain ones, each with the
    name of its coordinate and the number of the dimension."""
    words = []
    for dim in sorted({d for _, d, _ in digits}):
        left, parts = sizes[dim], []
        for name, _, digit in sorted((d for d in digits if d[1] == dim), key=lambda d: -d[2].stride):
            between = left // digit.period
            parts += [str(between), name] if between > 1 else [name]
            left = digit.stride
        words.append(f"{names[dim]}: {'·'.join(parts)}")
    return ", ".join(words)


def _region(type_: Type, value: str, graph: Graph, axes: Axes) -> str:
    shards = [(coordinate_text(coordinate), s) for coordinate, s in digits_of(type_, axes)]
    if not shards:
        return ""
    names, sizes = dimension_names(value, graph), [n for axis in graph.values[value].sizes for n in axis]
    even = digits_text([(name, s.factor, s.digit) for name, s in shards if s.digit.at is None], names, sizes)
    uneven = (f"{names[s.factor]}: {name} {regions_text(s.digit.at)}" for name, s in shards if s.digit.at is not None)
    return f"at ({', '.join(filter(None, (even, *uneven)))})"


def coordinate_text(coordinate: Coordinate) -> str:
    """The name of a coordinate; of axes that are one together, `node·gpu`."""
    return "·".join(names_of(coordinate))


def regions_text(at: Regions) -> str:
    """The sizes of parts that follow each other, `5 + 4 + 4`; else the region of each part, `0:6|4:13`."""
    sizes = lengths_of(at)
    if at == parts_of(sizes):
        return " + ".join(map(str, sizes))
    return "|".join("+".join(f"{start}:{end}" for start, end in runs) for runs in at)


def _partial(type_: Type, axes: Axes) -> str:
    lacking = [a for (a, _), p in zip(axes, type_.layout.places, strict=True) if p is PARTIAL]
    return (
        f"partial {{{', '.join(f'{name}: sum' for name in (*lacking, *type_.owed))}}}" if lacking or type_.owed else ""
    )


def dimension_names(value: str, graph: Graph) -> list[str]:
    """The name of each factor of a value; numbered if several have the same name (`batch.0`, `batch.1`)."""
    classes = [c for axis in graph.values[value].factors for c in axis]
    names = [graph.dim_names.get(c, f"dim{k}") for k, c in enumerate(classes)]
    often, seen = Counter(names), Counter[str]()
    found = []
    for name in names:
        found.append(f"{name}.{seen[name]}" if often[name] > 1 else name)
        seen[name] += 1
    return found
