"""Finds state that a forward leaves behind in Python: attributes that have another value after every call.

An attribute that has the same value after the first call and after the second (a cache, the last activation) does no
harm, nor does a tensor that the next call does not read. A counter or a list that grows would be a constant in the
graph, so it is refused.
"""

import math
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ssdsl.model.capture.module_error import own_failure
from ssdsl.model.capture.on_meta import device_of
from ssdsl.model.capture.preserve import module_kept
from ssdsl.model.capture.source_line import Place, is_own, module_name, of_function
from ssdsl.model.checks.errors import StateChanged
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import named_tensors
from ssdsl.record import Record
from ssdsl.runtime.ranks.control import bytes_of
from ssdsl.text.diagnostic import Diagnostic

DEPTH = 4  # of containers and plain objects inside an attribute
INTERNAL = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook"}  # torch's
State = dict[str, Any]  # by the paths of attributes, `h.0.attn.cache`


class Snapshot(Record):
    """The attributes of all modules; the weights and buffers that are `registered`, each as its identity and
    `requires_grad`; how often each buffer and frozen weight was changed in place; and the state of Python's random
    generators."""

    attributes: State
    registered: dict[str, tuple[int, bool]]
    versions: dict[str, int]
    drawn: int


def snapshot(module: nn.Module) -> Snapshot:
    """A snapshot of the module as it is now; tensors are compared by identity."""
    return Snapshot(_attributes(module, id), _registered(module), _versions(module), _drawn())


def changes(before: Snapshot, module: nn.Module) -> tuple[str, ...]:
    """The attributes that differ from the snapshot."""
    after = _attributes(module, id)
    return tuple(n for n in {**before.attributes, **after} if before.attributes.get(n) != after.get(n))


def written(before: Snapshot, module: nn.Module) -> tuple[str, ...]:
    """The buffers and frozen weights that were changed in place since the snapshot, as far as PyTorch counts changes:
    it does not count those that a kernel makes itself, such as a batch norm's."""
    return tuple(n for n, version in _versions(module).items() if before.versions.get(n, version) != version)


def check_registered(before: Snapshot, module: nn.Module, assigned: Mapping[str, Place]) -> Iterator[Diagnostic]:
    """Yields an error for each weight and buffer that the forward replaced, froze or unfroze, and one if it drew random
    numbers in Python. `assigned` are the places that assign attributes."""
    if before.drawn != _drawn():
        reason = "they are drawn once, at capture, and a program would use them in every step"
        change = "draw them by torch in the forward, such as by `torch.rand`, or before it"
        yield _diagnostic(module, "", "draws random numbers in Python", reason, change, {})
    after = _registered(module)
    for name in {**before.registered, **after}:
        old, new = before.registered.get(name), after.get(name)
        if old == new:
            continue
        weight = isinstance(_attribute(module, name), nn.Parameter)
        reason = "a program keeps its value at capture"
        if old is not None and new is not None and old[0] == new[0]:
            does, change = f"changes `requires_grad` of `{name}`", "set `requires_grad` in __init__"
        elif weight:
            does, change = f"replaces weight `{name}`", "compute with a new tensor, and leave the weight as it is"
        else:
            does, change = f"replaces buffer `{name}`", f"change it in place: self.{name.rpartition('.')[2]}.copy_(...)"
        yield _diagnostic(module, name, does, reason, change, assigned)


def check_attributes(model: Model, assigned: Mapping[str, Place]) -> Iterator[Diagnostic]:
    """Yields an error for each attribute that has another value after the second call than after the first, with the
    same batch; or an error for a call that fails."""
    module = model.module
    with module_kept(module):
        states = []
        for _ in range(2):
            try:
                _call(model)
            except Exception as error:  # the user's code may raise anything
                if not model.is_meta:  # else it reads numbers, which the weights have when it is trained
                    yield own_failure(model, "forward", error)
                return
            states.append(_attributes(module, _tensor))
        found = [n for n in {**states[0], **states[1]} if states[0].get(n) != states[1].get(n)]
        harmless = [n for n in found if isinstance(_attribute(module, n), torch.Tensor) and not _reads(model, n)]
    for name in found:
        if name not in harmless:
            reason = "its value after the second call differs from that after the first"
            change = "pass it as an input, or register it as a buffer and change it in place"
            yield _diagnostic(module, name, f"changes attribute `{name}`", reason, change, assigned)


def _call(model: Model) -> float:
    """Calls the model on its first batch, with the same random numbers each time: the loss, NaN if it has no number."""
    torch.manual_seed(0)
    with device_of(model):
        loss = model.compute(model.example())
    return float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not loss.is_meta else math.nan


def _reads(model: Model, name: str) -> bool:
    """Whether a call reads the value that a tensor attribute had before: the loss is NaN if that is NaN. A tensor that
    cannot be NaN counts as read. Leaves the attribute changed."""
    path, _, last = name.rpartition(".")
    value = _attribute(model.module, name)
    if not value.is_floating_point():
        return True
    setattr(model.module.get_submodule(path), last, torch.full_like(value, math.nan))
    return math.isnan(_call(model))


def _diagnostic(
    module: nn.Module, name: str, does: str, reason: str, change: str, assigned: Mapping[str, Place]
) -> StateChanged:
    path = name.rpartition(".")[0]
    place = assigned.get(name) or of_function(type(module.get_submodule(path)).forward)
    if place is None or not is_own(place.file):
        place = of_function(type(module).forward)
    return StateChanged(place.span() if place else None, does, module_name(path), reason, change)


def _drawn() -> int:
    """A number that changes with the states of Python's and numpy's random generators."""
    numpy = sys.modules.get("numpy")
    numbers, position = numpy.random.get_state()[1:3] if numpy else (b"", 0)
    return hash((random.getstate(), bytes(numbers), position))


def _attribute(module: nn.Module, name: str) -> Any:
    """The attribute at a path of names, as it is now; None if there is none."""
    path, _, last = name.rpartition(".")
    return getattr(module.get_submodule(path), last, None)


def _registered(module: nn.Module) -> dict[str, tuple[int, bool]]:
    return {name: (id(tensor), tensor.requires_grad) for name, tensor in named_tensors(module).items()}


def _versions(module: nn.Module) -> dict[str, int]:
    return {name: tensor._version for name, tensor in named_tensors(module).items() if not tensor.requires_grad}


def _attributes(module: nn.Module, tensor: Any) -> State:
    """The value of every attribute of every module, in a form that can be compared after the attribute has changed.
    `tensor` is the function that gives this form of a tensor: its identity, or its numbers."""
    found: State = {}
    for path, one in module.named_modules():
        for name, value in vars(one).items():
            if name not in INTERNAL:
                found[f"{path}.{name}".removeprefix(".")] = _value(value, tensor, DEPTH)
    return found


def _tensor(tensor: torch.Tensor) -> Any:
    """A tensor by its numbers, or by its shape where it has none."""
    if tensor.is_meta or tensor.is_sparse:
        return tensor.shape, tensor.dtype
    return tensor.shape, tensor.dtype, bytes_of(tensor.detach().cpu())


def _value(value: Any, tensor: Any, depth: int) -> Any:
    """The form of one value: containers and plain objects item by item, down to `depth`; of others the type alone."""
    match value:
        case torch.Tensor():
            return tensor(value)
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return value if value == value else "nan"  # NaN is not equal to itself
        case nn.Module():
            return "module"
        case list() | tuple() | deque() if depth:
            return type(value), len(value), tuple(_value(v, tensor, depth - 1) for v in value)
        case set() | frozenset():
            return type(value), len(value)
        case Mapping() if depth:
            return type(value), tuple((str(k), _value(v, tensor, depth - 1)) for k, v in value.items())
        case _ if depth and hasattr(value, "__dict__") and not callable(value):
            return type(value), tuple((k, _value(v, tensor, depth - 1)) for k, v in vars(value).items())
    return type(value)
