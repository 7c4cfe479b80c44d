"""Operators of users' functions: a call of a `torch.autograd.Function` is one operator, with the user's own backward.

`ChunkedLoss.apply(x, weight, labels, 0.1)` is a call of

    ssdsl_function::ChunkedLoss.3f2a(Tensor x, Tensor weight, Tensor labels,
                                     str function="losses:ChunkedLoss", str given="", ...) -> Tensor

whose tensors have the names of the forward's parameters. `given` are the arguments as Python literals, with `...` for
each tensor: `(..., ..., ..., 0.1)`; `made` are the results in the same way; `autocast` is the type to which autocast
casts around the call, if it does; `times` is the number by which a mean is multiplied (`RowFactor`). So a call is data,
and any process can define the operator from its target: it imports the class by its name.
"""

import ast
import hashlib
import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never

import torch
from torch.utils._pytree import tree_leaves

from ssdsl.model.ops.op import imported_name
from ssdsl.model.target import SchemaParameter, Target
from ssdsl.record import Record
from ssdsl.runtime.kernels.own_functions import autocasting, counted, tensors_of
from ssdsl.runtime.program.user_module import USER_PREFIX

NAMESPACE = "ssdsl_function"
LIBRARY: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
WORDS = ("function", "given", "made", "autocast", "times")  # the parameters behind the tensors
TENSOR = ...  # stands for a tensor among literals
LITERALS = (bool, int, float, str, bytes, complex, type(None))
WORD, FLOAT = "torch", "float"  # {"torch": "float32"} is torch.float32, {"float": "inf"} an infinity


class FunctionClass(Record):
    """A class by the module that defines it, as a program imports it, and its name there: `losses`, `Fused.Loss`."""

    module: str
    name: str

    @classmethod
    def of(cls, operator: Any) -> "FunctionClass | None":
        """The class whose operator this is, an overload or a target; None for other operators."""
        match operator:
            case Target(name=name) if name.startswith(f"{NAMESPACE}::"):
                default = next(p.default for p in operator.parameters if p.name == WORDS[0])
            case torch._ops.OpOverload(namespace="ssdsl_function"):
                default = next(p.default_value for p in operator._schema.arguments if p.name == WORDS[0])
            case _:
                return None
        module, _, name = str(default).partition(":")
        return cls(module, name)

    @property
    def row_name(self) -> str:
        """The operator's name in a row that a user gives: `losses::Loss`."""
        return f"{self.module}::{self.last}"

    @property
    def last(self) -> str:
        """The name of the class itself."""
        return self.name.rpartition(".")[2]

    @property
    def text(self) -> str:
        """The class in a program."""
        return f"{imported_name(self.module)}.{self.name}"

    def found(self) -> type[Any]:
        """The class. Raises ImportError or AttributeError where there is none."""
        found: Any = sys.modules.get(f"{USER_PREFIX}{self.module}") or importlib.import_module(self.module)
        for word in self.name.split("."):
            found = getattr(found, word)
        return found  # type: ignore[no-any-return]

    def target(self, names: Sequence[str], is_single: bool) -> Target:
        """The operator for calls with tensors of these names, which return one tensor or several."""
        words = (f"{self.module}:{self.name}", *("" for _ in WORDS[1:]))
        described = "|".join((*words, *names, str(is_single)))
        overload = f"f{hashlib.sha256(described.encode()).hexdigest()[:8]}"
        tensors = (SchemaParameter(name) for name in names)
        parameters = (*tensors, *map(SchemaParameter, WORDS, words))
        return Target(f"{NAMESPACE}::{self.last}.{overload}", parameters, unpacks=not is_single)


def define(target: Target) -> None:
    """Defines the operator of a user's function, unless it is defined."""
    name = target.name.partition("::")[2]
    packet, _, overload = name.partition(".")
    if overload in getattr(getattr(torch.ops, NAMESPACE), packet, _NoOverloads).overloads():
        return
    names = [p.name for p in target.parameters[: -len(WORDS)]]
    tensors = [f"Tensor {name}" for name in names]
    words = [f'str {p.name}="{p.default}"' for p in target.parameters[-len(WORDS) :]]
    result = "Tensor[]" if target.unpacks else "Tensor"
    LIBRARY.define(f"{name}({', '.join([*tensors, *words])}) -> {result}")
    function = FunctionClass.of(target)
    assert function is not None

    def call(*args: Any) -> Any:
        given = args[: len(tensors)]
        words = (*args[len(tensors) :], *(p.default for p in target.parameters[len(args) :]))
        factor = RowFactor.of(words[4]) if words[4] else None
        return called(function, words[1], words[3], factor, dict(zip(names, given, strict=True)))

    LIBRARY.impl(name, call, "CompositeImplicitAutograd")


class _NoOverloads:
    """An operator that is not defined."""

    @staticmethod
    def overloads() -> list[str]:
        return []


class RowFactor(Record):
    """The number by which a mean over rows is multiplied, so that the results of parts add up.

    It is the product of the sizes of some axes, `x.0 x.1`, or the number of elements that count, `labels != -100`.
    """

    axes: tuple[tuple[str, int], ...] = ()
    counts: tuple[str, int] | None = None

    @classmethod
    def of(cls, text: str) -> "RowFactor":
        """The number that a text describes.

        >>> RowFactor.of("x.0 x.1").axes, RowFactor.of("labels != -100").counts
        ((('x', 0), ('x', 1)), ('labels', -100))
        """
        name, unequal, value = text.partition(" != ")
        if unequal:
            return cls(counts=(name, int(value)))
        pairs = (word.rpartition(".") for word in text.split())
        return cls(tuple((name, int(axis)) for name, _, axis in pairs))

    def __str__(self) -> str:
        if self.counts is not None:
            return "{} != {}".format(*self.counts)
        return " ".join(f"{name}.{axis}" for name, axis in self.axes)

    def number(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The number, for tensors by the names of their parameters."""
        if self.counts is not None:
            name, value = self.counts
            return (tensors[name] != value).sum()
        return math.prod(tensors[name].shape[axis] for name, axis in self.axes)


def called(
    function: FunctionClass, given: str, autocast: str, times: RowFactor | None, tensors: Mapping[str, torch.Tensor]
) -> Any:
    """The result of `apply`: a tensor, or a list of all tensors among its results."""
    apply, args = function.found().apply, filled(ast.literal_eval(given), iter(tensors.values()))
    if autocast:
        apply, args = autocasting, (_value(ast.literal_eval(autocast)), apply, *args)
    if times is not None and times.counts is not None:
        name, value = times.counts
        return counted(tensors[name], value, apply, *args)
    result = apply(*args)
    if isinstance(result, torch.Tensor):
        return result if times is None else result * times.number(tensors)
    return tensors_of(result)


# -- arguments and results as literals ---------------------------------------------------------------------------------


class NoLiteral(Exception):
    """A text cannot hold this item; the message says what it is."""


def literal(item: Any) -> str:
    """An argument or result as a literal of Python, with `...` in place of each tensor. Raises NoLiteral.

    >>> literal((torch.ones(2), [1, torch.ones(3)], "sum", torch.float32, float("inf"), ()))
    "(..., [1, ...], 'sum', {'torch': 'float32'}, {'float': 'inf'}, ())"
    """
    match item:
        case torch.Tensor():
            return "..."
        case list() if type(item) is list:
            return f"[{', '.join(map(literal, item))}]"
        case tuple() if type(item) is tuple:
            return f"({', '.join(map(literal, item))}{',' if len(item) == 1 else ''})"
        case torch.dtype() | torch.layout() | torch.memory_format():
            return repr({WORD: str(item).removeprefix("torch.")})
        case float() if not math.isfinite(item):
            return repr({FLOAT: str(item)})
    return repr(item) if type(item) in LITERALS else _no(item)


def _no(item: Any) -> Never:
    name = getattr(item, "__name__", None)
    raise NoLiteral(f"the function `{name}`" if name and callable(item) else f"an object of `{type(item).__name__}`")


def integers_in(given: str) -> tuple[int, ...]:
    """The integers among the arguments of a call.

    >>> integers_in("(..., -100, True, [2, 0.5])")
    (-100, 2)
    """
    leaves = tree_leaves(ast.literal_eval(given))
    return tuple(item for item in leaves if type(item) is int)


def filled(item: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """An argument with the next of the tensors in place of each `TENSOR`."""
    match item:
        case _ if item is TENSOR:
            return next(tensors)
        case list() | tuple():
            return type(item)(filled(each, tensors) for each in item)
        case dict():
            return _value(item)
    return item


def _value(item: Mapping[str, str]) -> Any:
    return getattr(torch, item[WORD]) if WORD in item else float(item[FLOAT])


def apply_text(
    function: FunctionClass, names: Sequence[str], given: str, made: str, autocast: str = "", times: str = ""
) -> str:
    """The form of a call in a program, with the names of its tensors in braces.

    >>> apply_text(FunctionClass("losses", "Loss"), ["x", "w"], "(..., [...], 0.1, 'sum')", "...")
    "losses.Loss.apply({x}, [{w}], 0.1, 'sum')"
    >>> apply_text(FunctionClass("losses", "Loss"), ["x"], "(...,)", "...", "{'torch': 'bfloat16'}")
    'autocasting(torch.bfloat16, losses.Loss.apply, {x})'
    >>> apply_text(FunctionClass("losses", "Loss"), ["x"], "(...,)", "...", times="x.0 x.1")
    'losses.Loss.apply({x}) * {x}.shape[0] * {x}.shape[1]'
    >>> apply_text(FunctionClass("losses", "Loss"), ["x", "labels"], "(..., ...)", "...", times="labels != -100")
    'counted({labels}, -100, losses.Loss.apply, {x}, {labels})'
    """
    rest = iter(names)
    called = [f"{function.text}.apply", *(_text(item, rest) for item in ast.literal_eval(given))]
    if autocast:
        called = ["autocasting", _text(ast.literal_eval(autocast), rest), *called]
    factor = RowFactor.of(times)
    if factor.counts is not None:
        name, value = factor.counts
        called = ["counted", f"{{{name}}}", str(value), *called]
    text = f"{called[0]}({', '.join(called[1:])})"
    text += "".join(f" * {{{name}}}.shape[{axis}]" for name, axis in factor.axes)
    results = ast.literal_eval(made)
    is_plain = results is TENSOR or all(item is TENSOR for item in results)
    return text if is_plain else f"tensors_of({text})"


def _text(item: Any, names: Iterator[str]) -> str:
    match item:
        case _ if item is TENSOR:
            return f"{{{next(names)}}}"
        case list():
            return f"[{', '.join(_text(each, names) for each in item)}]"
        case tuple():
            inside = ", ".join(_text(each, names) for each in item)
            return f"({inside},)" if len(item) == 1 else f"({inside})"
        case dict():
            return f"torch.{item[WORD]}" if WORD in item else f'float("{item[FLOAT]}")'
    return repr(item).replace("{", "{{").replace("}", "}}")
