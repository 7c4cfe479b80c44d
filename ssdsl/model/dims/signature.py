"""Signatures tell which axes of an operator's tensors are the same dimension, like an einsum with named letters.

    "... in, out in, out+? -> ... out"

Commas separate operands, spaces separate axes. `...` stands for any number of axes, which broadcast. After a letter,
`!` means that it cannot be split, `*` that another kernel runs when it is split, and combines the parts itself. After
an operand's last axis, `?` means that the operand may be absent, `+` that it is added once to a sum (a bias). `(k:3 n)`
is an axis made of two letters, the first of size 3; `1` is an axis of size one; `_` a scalar. A letter that is missing
on the right is summed.

Rules that depend on a call's arguments build the same objects: `signature([[*axes("b"), whole("n")]], [axes("b")])`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from ssdsl.model.dims.window import Window
from ssdsl.record import Record, replace


class Misfit(Exception):
    """A signature does not fit the tensors of a call."""


class Windowed(Record):
    """The window of an input's letter: a run along the results' letter `of` needs a run along it."""

    of: str
    shape: Window


class Letter(Record):
    """A dimension in a signature. `beside`: an index may cut it, a combined one, together with that letter, as keys
    with queries."""

    name: str
    fixed: bool = False
    combined: bool = False
    size: int | None = None
    window: Windowed | None = None
    beside: str = ""


Axis = tuple[Letter, ...]  # the letters whose product the axis is, outermost first; none for an axis of size one
ONE: Axis = ()


class Pattern(Record):
    """An operand of a signature: letters per axis, None where `...` stands."""

    axes: tuple[Axis | None, ...]
    optional: bool = False
    once: bool = False

    def fit(self, rank: int) -> tuple[Axis, ...]:
        """The letters of each of `rank` axes; those of `...` are numbered from the right, so that they broadcast.

        Raises Misfit for a tensor with another number of axes.
        """
        if None not in self.axes:
            if len(self.axes) != rank:
                raise Misfit(f"it has {len(self.axes)} axes for a tensor of {rank}")
            return tuple(a for a in self.axes if a is not None)
        at = self.axes.index(None)
        count = rank - len(self.axes) + 1
        if count < 0:
            raise Misfit(f"it has {len(self.axes) - 1} axes or more for a tensor of {rank}")
        middle = tuple((Letter(f".{i}"),) for i in reversed(range(count)))
        return tuple(a for a in (*self.axes[:at], *middle, *self.axes[at + 1 :]) if a is not None)


class Signature(Record):
    """The patterns of an operator's inputs and outputs."""

    inputs: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...]

    def letters(self) -> dict[str, Letter]:
        """Every letter by its name."""
        return {x.name: x for p in (*self.outputs, *self.inputs) for axis in p.axes for x in axis or ()}


def signature(
    inputs: Iterable[Sequence[Axis | None]], outputs: Iterable[Sequence[Axis | None]], addends: Collection[int] = ()
) -> Signature:
    """A signature of operands given axis by axis; `addends` are the inputs that are added once to a sum."""
    given = (Pattern(tuple(o), once=i in addends) for i, o in enumerate(inputs))
    return Signature(tuple(given), tuple(Pattern(tuple(o)) for o in outputs))


def free(name: str) -> Axis:
    """An axis that may be split."""
    return (Letter(name),)


def whole(name: str, size: int | None = None) -> Axis:
    """An axis, or a factor of one of this size, that cannot be split."""
    return (Letter(name, fixed=True, size=size),)


def combined(name: str) -> Axis:
    """An axis whose parts a kernel combines."""
    return (Letter(name, combined=True),)


def kept_whole(axis: Axis) -> Axis:
    """The axis with letters that cannot be split."""
    return tuple(replace(x, fixed=True) for x in axis)


def axes(count: int, word: str = "d") -> list[Axis]:
    """`count` axes that may be split: `d0 d1 d2`."""
    return [free(f"{word}{i}") for i in range(count)]


def with_axis(given: Sequence[Axis], at: int, *new: Axis) -> list[Axis]:
    """These axes with `new` ones in place of axis number `at`; without `new`, that axis is left out."""
    return [*given[:at], *new, *given[at + 1 :]]


def whole_axes(count: int, word: str) -> list[Axis]:
    return [whole(f"{word}{i}") for i in range(count)]


@lru_cache(maxsize=4096)
def parse_signature(text: str) -> Signature:
    """The signature that a text denotes.

    Raises ValueError if it is no signature.

    >>> [len(p.axes) for p in parse_signature("... in, out in, out+? -> ... out").inputs]
    [2, 2, 1]
    """
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right or not right.strip():
        raise ValueError(f'a signature is written "inputs -> outputs", not "{text}"')
    return Signature(_patterns(left), _patterns(right))


def _patterns(text: str) -> tuple[Pattern, ...]:
    return tuple(_pattern(p.strip()) for p in text.split(",") if p.strip())


def _pattern(text: str) -> Pattern:
    optional, once = "?" in text, "+" in text
    tokens = re.findall(r"\([^)]*\)|\S+", text.replace("?", "").replace("+", ""))
    if tokens.count("...") > 1:
        raise ValueError(f"`...` stands once in an operand, not twice as in `{text}`")
    parsed = tuple(None if t == "..." else _axis(t) for t in tokens if t != "_")
    return Pattern(parsed, optional, once)


def _axis(token: str) -> Axis:
    if token == "1":
        return ONE
    return tuple(_letter(t) for t in token.strip("()").split())


def _letter(token: str) -> Letter:
    if not (found := re.fullmatch(r"([A-Za-z]\w*)([!*]*)(?::(\d+))?([!*]*)", token)):
        raise ValueError(f"`{token}` is no letter of a signature: a name, then perhaps `!`, `*` or `:size`")
    name, marks, size, more = found.groups()
    return Letter(name, "!" in marks + more, "*" in marks + more, int(size) if size else None)
