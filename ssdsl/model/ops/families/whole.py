"""The rule that is always right: no axis of any tensor can be split, so that each device computes all of it.

An axis that inputs and results share keeps its letter, so that they have the same dimension for other operators.
"""

from collections.abc import Sequence

from ssdsl.model.dims.signature import Axis, Signature, signature, whole, whole_axes
from ssdsl.model.ops.reader import Shape, TypedCall


def all_whole(call: TypedCall) -> Signature:
    """A signature in which nothing can be split."""
    given = [whole_axes(len(s), f"in{k}_") for k, s in enumerate(call.shapes)]
    return signature(given, [kept(t.shape, call.shapes, given, f"out{k}_") for k, t in enumerate(call.outputs)])


def kept(made: Shape, shapes: Sequence[Shape], given: Sequence[Sequence[Axis]], word: str) -> list[Axis]:
    """Whole axes for a result without a rule, with the letters of the input most like it."""
    rank = len(made)
    alike = [i for i, s in enumerate(shapes) if len(s) == rank and any(n == m for n, m in zip(s, made, strict=True))]
    new = whole_axes(rank, word)
    if not alike:
        return new
    most = max(alike, key=lambda i: sum(n == m for n, m in zip(shapes[i], made, strict=True)))
    return [a if n == m else b for a, b, n, m in zip(given[most], new, shapes[most], made, strict=True)]


def axes_after(given: Sequence[Axis], before: Shape, after: Shape) -> list[Axis]:
    """The axes of a result, which are those of the input in the same order; one of another size is new, and whole."""
    pairs = enumerate(zip(given, before, after, strict=True))
    return [axis if n == m else whole(f"new{i}") for i, (axis, n, m) in pairs]
