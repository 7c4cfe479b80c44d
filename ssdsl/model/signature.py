"""Signatures: which axes of an operator's tensors are the same dimension, written as an einsum over named letters.

    "... in, out in, out+? -> ... out"

Operands are separated by commas, axes by spaces. `...` stands for any number of axes, which broadcast. Behind a letter:
`!` it cannot be split; `*` split, another kernel combines the parts itself. Behind an operand's last axis: `?` the
operand may be absent; `+` it is added once to a sum (a bias). `(k:3 n)` is an axis made of two letters, the first of
size 3; `1` is an axis of size one; `_` a scalar. A letter missing on the right is summed.
"""

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Letter:
    name: str
    fixed: bool = False
    combined: bool = False
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operand of a signature: letters per axis, None where `...` stands."""

    axes: tuple[tuple[Letter, ...] | None, ...]
    optional: bool = False
    once: bool = False

    def fit(self, rank: int) -> tuple[tuple[Letter, ...], ...]:
        """The letters of each of `rank` axes; those of `...` are numbered from the right, so that they broadcast."""
        if None not in self.axes:
            assert len(self.axes) == rank, f"{self} for a tensor of {rank} axes"
            return tuple(a for a in self.axes if a is not None)
        at = self.axes.index(None)
        count = rank - len(self.axes) + 1
        assert count >= 0, f"{self} for a tensor of {rank} axes"
        middle = tuple((Letter(f".{i}"),) for i in reversed(range(count)))
        return tuple(a for a in (*self.axes[:at], *middle, *self.axes[at + 1 :]) if a is not None)


@dataclass(frozen=True, slots=True)
class Signature:
    inputs: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...]


@lru_cache(maxsize=4096)
def parse_signature(text: str) -> Signature:
    """The signature that a row of the rule table denotes."""
    left, right = text.split("->")
    return Signature(_patterns(left), _patterns(right))


def _patterns(text: str) -> tuple[Pattern, ...]:
    return tuple(_pattern(p.strip()) for p in text.split(",") if p.strip())


def _pattern(text: str) -> Pattern:
    optional, once = "?" in text, "+" in text
    tokens = re.findall(r"\([^)]*\)|\S+", text.replace("?", "").replace("+", ""))
    axes = tuple(None if t == "..." else _axis(t) for t in tokens if t != "_")
    return Pattern(axes, optional, once)


def _axis(token: str) -> tuple[Letter, ...]:
    if token == "1":
        return ()
    return tuple(_letter(t) for t in token.strip("()").split())


def _letter(token: str) -> Letter:
    name, _, size = token.partition(":")
    plain = name.rstrip("!*")
    return Letter(plain, "!" in name, "*" in name, int(size.rstrip("!*")) if size else None)
