"""Checks that the backward of `autograd.Function`s that are no operators is the derivative of their forward, on the
example batch.

Of such a function a capture holds the operators of the forward, and a program differentiates these. So the backward is
compared with torch's own derivative of the forward, for every call that one run of the model makes. A derivative is
linear in the incoming gradient; gradients of several sizes are tried, so that a backward that clips is found.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ssdsl.model.capture.own_functions import NoOperator
from ssdsl.model.capture.preserve import module_kept, patched
from ssdsl.model.capture.source_line import Place
from ssdsl.model.checks.errors import CustomGradient
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import tensors_in
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic

SCALES = (1.0, -1e3, 1e6, 1e-3)  # factors of the incoming gradients
ALLOWED = 1e-3  # of the largest element; a half-precision type rounds by more
WRONG = "its backward gives {:.4g} where the derivative of the forward is {:.4g}"
FAILS = "its backward cannot be compared with the derivative of the forward: {}: {}"
UNCALLED = "its backward was not compared: it was not called when the model ran by itself"
OPERATOR = "or write it as torch.library.custom_op with register_autograd, in a module of its own"
PASSES = "or write it with operators: `x + (y - x).detach()` has the value of `y` and the gradient of `x`"


Name = tuple[str, str]  # of a class: its module, and its name there


class _Difference(Record):
    """The reason why a backward is not the derivative of the forward, and whether it passes gradients on."""

    reason: str
    passes: bool = False


def wrong_gradients(model: Model, functions: Mapping[type[Any], tuple[Place, NoOperator]]) -> Iterator[Diagnostic]:
    """A diagnostic for every function of the model's forward that is no operator and whose backward is not its
    forward's derivative."""
    if not functions or model.is_meta:  # nothing runs on the meta device, so nothing can be wrong
        return
    found: dict[Name, _Difference | None] = {}
    with module_kept(model.module), _compared(found, {*map(_name, functions)}):
        try:
            model.compute(model.example())
        except Exception:  # of a module that keeps a state between the two calls
            if not any(found.values()):
                raise
    for function, (place, why) in functions.items():
        if (difference := found.get(_name(function), _Difference(UNCALLED))) is not None:
            change = "\n".join((why.change, PASSES if difference.passes else OPERATOR))
            reasons = why.reason, place.where, difference.reason
            yield CustomGradient(place.span(), function.__name__, *reasons, change)


def _name(function: type[Any]) -> Name:
    """The name of a class; a forward may make another class of this name in each call."""
    return function.__module__, function.__qualname__


def _compared(found: dict[Name, _Difference | None], functions: Container[Name]) -> AbstractContextManager[None]:
    """A context in which each call of these functions is checked after it ran. `found` collects how a function is
    wrong; None if it is not."""
    original: Any = vars(torch.autograd.Function)["apply"]  # a class method, of Python or, from torch 2.14 on, of C

    def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        function = original.__get__(None, cls)
        results = function(*args, **kwargs)
        name = _name(cls)
        if name in functions and found.get(name) is None:
            try:
                found[name] = _difference(lambda *given: function(*given, **kwargs), cls, args)
            except Exception as error:  # the user's code may raise anything
                found[name] = _Difference(FAILS.format(type(error).__name__, str(error).partition("\n")[0]))
        return results

    return patched(torch.autograd.Function, "apply", classmethod(apply))


class _Context:
    """The context that a forward gets in place of torch's, so that autograd differentiates its operators.

    Nothing reads what a forward records in it: its own backward does not run.
    """

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward


def _difference(apply: Callable[..., Any], cls: type[Any], args: tuple[Any, ...]) -> _Difference | None:
    """How a function's backward is wrong; None if it is the derivative of the forward."""
    with torch.enable_grad():
        ours, theirs = _own(args), _own(args)
        custom = _tensors(apply(*ours))
        plain = _tensors(_forward(cls, theirs))
    if len(custom) != len(plain):
        return _Difference("its forward cannot be compared")
    seed = torch.Generator().manual_seed(0)
    for scale in SCALES:
        coming = [scale * torch.randn(t.shape, generator=seed, device="cpu").to(t) for t in custom]
        got = _gradients(custom, ours, coming)
        expected = _gradients(plain, theirs, coming)
        for one, other in zip(got, expected, strict=True):
            allowed = ALLOWED * 20 if one.dtype in (torch.bfloat16, torch.float16) else ALLOWED
            error = (one - other).abs()
            if one.numel() and not error.max() <= allowed * other.abs().max():  # `not <=`: NaN is wrong too
                at = int(error.argmax())
                values = (float(t.flatten()[at]) for t in (one, other))
                return _Difference(WRONG.format(*values), _passes(got, coming))
    return None


def _passes(gradients: Sequence[torch.Tensor], coming: Sequence[torch.Tensor]) -> bool:
    """Whether the only gradient is the one that comes in."""
    return len(gradients) == len(coming) == 1 and torch.equal(gradients[0], coming[0])


def _own(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with copies of their tensors, which require gradients if the given ones do."""
    return tuple(a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args)


def _forward(cls: type[Any], args: tuple[Any, ...]) -> Any:
    """The results of a function's forward, as plain operators that autograd differentiates."""
    given = tuple(a.view_as(a) if isinstance(a, torch.Tensor) else a for a in args)  # so that it may change them
    if cls.setup_context is not torch.autograd.Function.setup_context:
        return cls.forward(*given)
    context = _Context()  # a class without `setup_context` gets it as the first argument of its forward
    context.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    return cls.forward(context, *given)


def _tensors(results: Any) -> list[torch.Tensor]:
    return [t for t in tensors_in(results) if t.is_floating_point()]


def _gradients(
    outputs: list[torch.Tensor], inputs: tuple[Any, ...], coming: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The gradients of those inputs that require one, for the gradients `coming` of the outputs."""
    learning = [a for a in inputs if isinstance(a, torch.Tensor) and a.requires_grad]
    pairs = [(t, c) for t, c in zip(outputs, coming, strict=True) if t.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(a) for a in learning)
    heads, gradients = zip(*pairs, strict=True)
    return torch.autograd.grad(heads, learning, gradients, retain_graph=True, materialize_grads=True, allow_unused=True)
