"""Converts torch's objects to the data of a graph (`target.py`, `constant.py`) and back."""

from functools import cache
from typing import Any

import torch

import ssdsl.model.ops.library  # noqa: F401  registers ssdsl's own operators
from ssdsl.model.constant import Constant
from ssdsl.model.memory.memory_order import asks_for_order
from ssdsl.model.ops.functions import FunctionClass, define
from ssdsl.model.target import SchemaParameter, Target, TorchWord
from ssdsl.runtime.program.recipes import operator_named
from ssdsl.runtime.ranks.control import bytes_of


@cache
def target_of(overload: Any) -> Target:
    """An overload as data."""
    schema = overload._schema
    parameters = (SchemaParameter(p.name, as_data(p.default_value), p.has_default_value()) for p in schema.arguments)
    unpacks = len(schema.returns) > 1 or (len(schema.returns) == 1 and "List" in str(schema.returns[0].type))
    is_pointwise = torch.Tag.pointwise in overload.tags
    return Target(overload.name(), tuple(parameters), is_pointwise, asks_for_order(overload), unpacks)


def overload(target: Target) -> Any:
    """torch's object of an overload. Raises LookupError if torch has no such operator."""
    if FunctionClass.of(target) is not None:
        define(target)
    if (found := operator_named(target.name)) is None:
        raise LookupError(target.name)
    return found


def as_data(item: Any) -> Any:
    """An argument of a call as data."""
    match item:
        case torch.dtype() | torch.layout() | torch.memory_format():
            return TorchWord(type(item).__name__, str(item).removeprefix("torch."))  # type: ignore[arg-type]
        case torch.device():
            return TorchWord("device", str(item))
        case tuple() | list():
            return tuple(map(as_data, item))
    return item


def as_torch(item: Any) -> Any:
    """torch's object for a word; any other value unchanged."""
    if not isinstance(item, TorchWord):
        return item
    return torch.device(item.name) if item.kind == "device" else getattr(torch, item.name)


def constant_of(tensor: torch.Tensor) -> Constant:
    """A tensor as data."""
    data = None if tensor.is_meta else bytes_of(tensor.detach().cpu().resolve_conj().resolve_neg())
    return Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def tensor_of(constant: Constant) -> torch.Tensor:
    """The tensor; on the meta device, where it has no numbers."""
    dtype = getattr(torch, constant.dtype)
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype, device="meta" if constant.data is None else "cpu")
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).view(constant.shape)
