"""Calls of users' `torch.autograd.Function`s as operators of the graph, each with the user's own backward.

torch.export sees the operators of a forward and not that another backward belongs to them. So a call is recorded as one
operator (`ops/functions.py`). It is run once before, on tensors without numbers, to see its results.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import get_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ssdsl.model.capture.overloads import overload
from ssdsl.model.capture.preserve import unrecorded
from ssdsl.model.load.unmaterialised import tensors_in
from ssdsl.model.ops.defined import importable_name
from ssdsl.model.ops.functions import WORDS, FunctionClass, NoLiteral, literal
from ssdsl.record import Record

Apply = Callable[..., Any]
MOVE = "define the class at the top of a module that programs can import"
NUMBERS = "compute its results from shapes and operators alone, without reading numbers of tensors"
PLAIN = "pass tensors, numbers and texts; keep anything else out of `apply`"


class NoOperator(Exception):
    """A call that cannot be an operator, with the reason and the change to make."""

    def __init__(self, reason: str, change: str) -> None:
        super().__init__(reason)
        self.reason, self.change = reason, change


class ReadsTensors(Exception):
    """A function whose forward reads tensors of the model that are no arguments of it."""


class ChangesInputs(Exception):
    """A function whose forward changes a tensor that it is given."""


def recorded_function(cls: type[Any], args: Sequence[Any], kwargs: Mapping[str, Any], apply: Apply) -> Any:
    """The results of a call of a function, which is recorded as one operator.

    Raises NoOperator if it cannot be one, ReadsTensors and ChangesInputs for functions that no program can run.
    """
    if get_interpreter_stack():
        raise NoOperator("it is called inside a function of torch.func", "call it outside of torch.func")
    results = _tried(apply, args, kwargs)
    call = _Call.of(cls, args, kwargs)
    function = _importable(cls)
    made, is_single = _made(results)
    target = function.target(call.names, is_single)
    words = f"{function.module}:{function.name}", call.given, made, _autocast(call.tensors), ""
    found = overload(target)(*call.tensors, *words)
    if is_single:
        return found
    rest = iter(found)
    return tuple(next(rest) if isinstance(item, torch.Tensor) else item for item in results)


class _Call(Record):
    """The tensors among the arguments of a call, their names, and the arguments with places for tensors."""

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    given: str

    @classmethod
    def of(cls, function: type[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> "_Call":
        """The call of a function. Raises NoOperator if an argument is nothing that a program can write."""
        named = [*_named(function, args)]
        if kwargs:
            raise NoOperator(f"`{next(iter(kwargs))}` is given by its name", "give the arguments by position")
        try:
            given = literal(tuple(args))
        except NoLiteral as error:
            raise NoOperator(f"it is given {error}, which no program can write", PLAIN) from error
        return cls(tuple(name for name, _ in named), tuple(tensor for _, tensor in named), given)


def _named(function: type[Any], args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with names: those of the forward's parameters, `weights_0`, `weights_1` for a list of them."""
    parameters = [p.name for p in inspect.signature(function.forward).parameters.values()]
    words = parameters if _has_setup(function) else parameters[1:]
    taken = {*WORDS}
    for number, item in enumerate(args):
        word = words[number] if number < len(words) - 1 or len(words) == len(args) else f"x{number}"
        found = tensors_in(item)
        for at, tensor in enumerate(found):
            name = word if isinstance(item, torch.Tensor) else f"{word}_{at}"
            while name in taken:
                name += "_"
            taken.add(name)
            yield name, tensor


def _has_setup(function: type[Any]) -> bool:
    return function.setup_context is not torch.autograd.Function.setup_context


def _importable(cls: type[Any]) -> FunctionClass:
    """The class as programs import it. Raises NoOperator if no module has it under its name."""
    if "<locals>" in cls.__qualname__:
        raise NoOperator("it is defined inside a function, where no program can import it", MOVE)
    module = inspect.getmodule(cls)
    name = None if module is None or module.__name__ == "__main__" else importable_name(module)
    if name is None:
        raise NoOperator(f"no program can import its module `{cls.__module__}`", MOVE)
    found = FunctionClass(name, cls.__qualname__)
    try:
        known = found.found()
    except (ImportError, AttributeError):
        known = None
    if known is not cls:
        raise NoOperator(f"its module has no `{cls.__qualname__}` that a program could import", MOVE)
    return found


def _autocast(tensors: Sequence[torch.Tensor]) -> str:
    """The type to which autocast casts where the call is made, or ""."""
    device = tensors[0].device.type if tensors else "cpu"
    return literal(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""


def _made(results: Any) -> tuple[str, bool]:
    """The results with places for tensors, and whether they are one tensor. Raises NoOperator."""
    if isinstance(results, torch.Tensor):
        return literal(results), True
    try:
        return literal(tuple(results)), False
    except (NoLiteral, TypeError) as error:
        raise NoOperator(f"it returns {error}", "return tensors, numbers and texts") from error


# -- one run without numbers -------------------------------------------------------------------------------------------


class _Reads(TorchFunctionMode):
    """Notes tensors of the model that functions read: such tensors have no numbers at capture, or learn. What the
    functions make is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, torch.Tensor] = {}
        self.made: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for item in tensors_in((args, kwargs)):
            if id(item) not in self.made and (item.requires_grad or isinstance(item, FakeTensor)):
                self.read[id(item)] = item
        results = func(*args, **(kwargs or {}))
        self.made |= {id(t): t for t in tensors_in(results)}
        return results


def _tried(apply: Apply, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The results of a call on copies of its arguments, which nothing records."""
    with unrecorded(), torch.enable_grad():
        copies = tree_map_only(torch.Tensor, _copy, tuple(args))
        own = tensors_in(copies)
        before = [t._version for t in own]
        try:
            with _Reads() as reads:
                results = apply(*copies, **kwargs)
        except Exception as error:  # the user's code may raise anything
            first = str(error).strip().partition("\n")[0]
            raise NoOperator(f"its forward fails without numbers: {type(error).__name__}: {first}", NUMBERS) from error
    if any(t._version != version for t, version in zip(own, before, strict=True)):
        raise ChangesInputs
    if not reads.read.keys() <= {id(t) for t in own}:
        raise ReadsTensors
    return results


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    return copied.requires_grad_().clone() if tensor.requires_grad else copied  # no leaf may be changed in place
