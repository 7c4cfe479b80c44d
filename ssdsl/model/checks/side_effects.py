"""Detects side effects of a forward that leave no trace in its graph, with the lines that cause them.

`torch.export` runs the forward once and records operators. Functions of the autograd engine (custom gradients, hooks)
and assignments of Python are no operators. For the time of one capture they are replaced here by ones that note the
caller's line, and then do the same.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from ssdsl.model.capture.derivatives import recorded_derivative, recorded_grad_and_value, recorded_vjp
from ssdsl.model.capture.own_functions import ChangesInputs, NoOperator, ReadsTensors, recorded_function
from ssdsl.model.capture.preserve import patched
from ssdsl.model.capture.source_line import Place, running
from ssdsl.model.checks.errors import (
    ArgumentChanged,
    AutocastElsewhere,
    HiddenTensors,
    HookLost,
    StateChanged,
    TensorChanged,
)
from ssdsl.model.checks.python_state import Snapshot, changes, check_registered, written
from ssdsl.model.load.unmaterialised import named_tensors
from ssdsl.model.rewrite.grouped_norm import grouped_batch_norm
from ssdsl.runtime.program.returned import Leaf
from ssdsl.text.diagnostic import Diagnostic

DRAWS = (  # of `random`, and of `numpy.random`
    "random uniform randint randrange choice choices sample shuffle gauss normalvariate expovariate "
    "rand randn random_sample normal standard_normal permutation binomial poisson exponential beta gamma"
).split()
RECORDED: dict[str, Callable[..., Any]] = {  # called by the functions of torch.func that take derivatives
    "grad_and_value_impl": recorded_grad_and_value,
    "_vjp_with_argnums": recorded_vjp,
    "_jvp_with_argnums": eager_transforms._jvp_with_argnums,  # torch.export sees through it
}
REENTRANT = torch.utils.checkpoint.CheckpointFunction


@dataclass(slots=True)
class SideEffects:
    """Side effects of a forward: mistakes are in `found`. Custom functions that are no operators, with the reason, and
    assigned attributes, each with the first line, may be mistakes; that is decided after the capture. So is
    `derivative`, the first line that takes one. `is_within`: such a function is running.

    At its end the module is compared with what it was: attributes that `changed`, buffers `written` in place, and what
    it may not do (`replaced`). `missing` is an output that it does not return, `returned` what was asked for.
    """

    module: torch.nn.Module
    paths: dict[int, str]
    device: str
    found: list[Diagnostic] = field(default_factory=list)
    functions: dict[type[Any], tuple[Place, NoOperator]] = field(default_factory=dict)
    is_within: bool = False
    assigned: dict[str, Place] = field(default_factory=dict)
    derivative: Place | None = None
    changed: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    replaced: tuple[Diagnostic, ...] = ()
    missing: Diagnostic | None = None
    returned: tuple[Leaf, ...] = ()

    def report(self, make: Callable[[Place], Diagnostic], direct: bool = False) -> None:
        """Adds a diagnostic for the current line, if that is in the model's forward; equal ones once."""
        place = running(self.paths, direct)
        if place is not None and (one := make(place)) not in self.found:
            self.found.append(one)

    def compare(self, before: Snapshot, module: torch.nn.Module) -> None:
        """Notes what the forward has changed in a module since the snapshot."""
        self.changed, self.written = changes(before, module), written(before, module)
        self.replaced = tuple(check_registered(before, module, self.assigned))


@contextlib.contextmanager
def recording(effects: SideEffects) -> Iterator[None]:
    """A context in which calls that leave no trace in the graph are reported to `effects`."""
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in _replacements(effects):
            stack.enter_context(patched(owner, name, replacement))
        yield


def _replacements(effects: SideEffects) -> Iterator[tuple[Any, str, Any]]:
    original: Any = vars(torch.autograd.Function)["apply"]
    yield torch.autograd.Function, "apply", classmethod(_apply(effects, original))
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        yield torch.Tensor, name, _with_note(getattr(torch.Tensor, name), _reported(effects, _hook(name)))
    yield torch.Tensor, "data", _data(effects)
    yield _BatchNorm, "forward", _norm(_BatchNorm.forward)
    for owner in (torch, torch.Tensor):
        yield owner, "bincount", bounded(owner.bincount)
    yield torch.nn.Module, "__setattr__", _with_note(torch.nn.Module.__setattr__, partial(_assigned, effects))
    yield torch.autograd, "backward", _with_note(torch.autograd.backward, _reported(effects, _backward))
    yield torch.autograd, "grad", _differentiating(effects, torch.autograd.grad, recorded_derivative)
    for name, recorded in RECORDED.items():
        yield eager_transforms, name, _differentiating(effects, getattr(eager_transforms, name), recorded)
    yield eager_transforms, "jacfwd", eager_transforms.jacrev  # inside of `hessian`: the same numbers
    yield saved_tensors_hooks, "__init__", _with_note(saved_tensors_hooks.__init__, partial(_saved, effects))
    autocast = torch.amp.autocast_mode.autocast
    yield autocast, "__init__", _with_note(autocast.__init__, partial(_autocast, effects))
    numpy = sys.modules.get("numpy")
    for module in (random, numpy.random) if numpy is not None else (random,):
        for name in (name for name in DRAWS if hasattr(module, name)):
            drawn = _reported(effects, _drawn(f"`{module.__name__}.{name}`"), direct=True)
            yield module, name, _with_note(getattr(module, name), drawn)


def _with_note(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """The function as one that calls `note` first."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return function(*args, **kwargs)

    return noted


def _reported(effects: SideEffects, make: Callable[[Place], Diagnostic], direct: bool = False) -> Callable[..., None]:
    return lambda *args, **kwargs: effects.report(make, direct)


def _apply(effects: SideEffects, original: Any) -> Callable[..., Any]:
    """`Function.apply`, noted. `original` is a class method, of Python or, from torch 2.14 on, of C."""

    def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        own = original.__get__(None, cls)
        place = None if cls.__module__.startswith(("torch.", "ssdsl.")) else running(effects.paths)
        if cls is REENTRANT:
            effects.report(_reentrant)
        elif place is not None and not effects.is_within:
            return _function(effects, cls, args, kwargs, own, place)
        return own(*args, **kwargs)

    return apply


def _function(effects: SideEffects, cls: type[Any], args: Any, kwargs: Any, apply: Any, place: Place) -> Any:
    """A call of a user's function: one operator, or else the operators of its forward, if that has the gradient of its
    backward. A function that it calls itself belongs to it."""
    effects.is_within = True
    try:
        return recorded_function(cls, args, kwargs, apply)
    except NoOperator as error:
        effects.functions.setdefault(cls, (place, error))
    except ReadsTensors:
        effects.report(lambda place: HiddenTensors(place.span(), cls.__name__, place.where))
    except ChangesInputs:
        effects.report(lambda place: ArgumentChanged(place.span(), cls.__name__, place.where))
    finally:
        effects.is_within = False
    return apply(*args, **kwargs)


def _reentrant(place: Place) -> Diagnostic:
    return HiddenTensors(place.span(), "CheckpointFunction", place.where)


def _hook(name: str) -> Callable[[Place], Diagnostic]:
    return lambda place: HookLost(place.span(), f"the hook of `{name}`", f"a tensor of {place.where}")


def _backward(place: Place) -> Diagnostic:
    return HookLost(place.span(), "`backward`", place.where)


def _data(effects: SideEffects) -> property:
    """`x.data` as `x.detach()`, which it equals as long as nothing is assigned to it. A frozen weight is changed in
    place by what is assigned to its data."""
    known: Any = torch._C.TensorBase.data

    def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
        frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
        if frozen and (tensor.shape, tensor.dtype) == (value.shape, value.dtype) and running(effects.paths) is not None:
            if _is_of_another(value, tensor, effects.module):
                effects.report(_data_shared)
            tensor.copy_(value.detach())
            return
        effects.report(_data_set, direct=True)
        known.__set__(tensor, value)

    def read(tensor: torch.Tensor) -> Any:
        return known.__get__(tensor) if running(effects.paths, direct=True) is None else tensor.detach()

    return property(read, write)


def _is_of_another(value: torch.Tensor, tensor: torch.Tensor, module: torch.nn.Module) -> bool:
    """Whether a value shares the memory of a weight or buffer of a module other than this tensor."""
    others = (held for held in named_tensors(module).values() if held is not tensor)
    return any(held.untyped_storage()._cdata == value.untyped_storage()._cdata for held in others)


def _data_shared(place: Place) -> Diagnostic:
    reason = "the tensor would change with the weight or buffer whose memory it shares"
    return TensorChanged(
        place.span(), "a tensor's `.data`", "assigned", place.where, reason, "assign a copy: `.clone()`"
    )


def _data_set(place: Place) -> Diagnostic:
    reason = "a program keeps the tensor's old value"
    change = "compute a new tensor, or register the tensor as a buffer and change it in place"
    return TensorChanged(place.span(), "a tensor's `.data`", "assigned", place.where, reason, change)


def _assigned(effects: SideEffects, module: torch.nn.Module, name: str, value: Any) -> None:
    path = effects.paths.get(id(module))
    if path is not None and (place := running(effects.paths)) is not None:
        effects.assigned.setdefault(f"{path}.{name}".removeprefix("."), place)


def _norm(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The forward of batch norms. Without a momentum, torch's reads a number from a buffer; this uses tensors only."""

    def forward(norm: Any, x: torch.Tensor) -> torch.Tensor:
        if norm.momentum is None and norm.training and norm.track_running_stats:
            norm._check_input_dim(x)
            return grouped_batch_norm(norm, x, 1)
        return function(norm, x)

    return forward


def bounded(counting: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.bincount`, or the method, with as many counts as its `minlength` says: a sum of ones, or of weights, over
    the numbers that are equal.

    torch's result is longer where a number is `minlength` or greater, so its shape depends on data. Models that give a
    `minlength` know a bound (a router has so many experts). A number beyond it stops the run, as an index out of range.
    """

    def counts(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        if not minlength:
            return counting(input, weights, minlength)
        if weights is None:
            each = torch.ones_like(input, dtype=torch.int64)
        else:
            each = weights if weights.dtype is torch.float32 else weights.double()  # as torch does
        return each.new_zeros(minlength).scatter_add(0, input.long(), each)

    return counts


def _differentiating(
    effects: SideEffects, function: Callable[..., Any], recorded: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that takes derivatives, recorded where the forward calls it."""

    def differentiate(*args: Any, **kwargs: Any) -> Any:
        place = running(effects.paths)
        effects.derivative = effects.derivative or place
        return (function if place is None else recorded)(*args, **kwargs)

    return differentiate


def _saved(effects: SideEffects, hooks: Any, *args: Any, **kwargs: Any) -> None:
    if type(hooks) is saved_tensors_hooks:  # torch's own (checkpoint, save_on_cpu) return what they took
        effects.report(lambda place: HookLost(place.span(), "the hook on saved tensors", place.where))


def _autocast(effects: SideEffects, region: Any, device_type: str, *given: Any, **words: Any) -> None:
    enabled = given[1] if len(given) > 1 else words.get("enabled", True)
    if enabled and device_type != effects.device:
        effects.report(lambda p: AutocastElsewhere(p.span(), device_type, effects.device, p.where))


def _drawn(what: str) -> Callable[[Place], Diagnostic]:
    reason = f"{what} draws a number once, at capture, and the program would use it in every step"
    change = "draw them by torch in the forward, such as by `torch.rand`, or before it"
    return lambda p: StateChanged(p.span(), "draws random numbers in Python", p.where, reason, change)
