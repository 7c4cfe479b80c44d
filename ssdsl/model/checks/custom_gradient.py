"""Checks that the backward of custom `autograd.Function`s is the derivative of their forward, on the example batch.

A capture holds the operators of the forward, and a program differentiates these. So the backward is compared with
torch's own derivative of the forward, for every call that one run of the model makes. A derivative is linear in the
incoming gradient; gradients of several sizes are tried, so that a backward that clips is found.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from ssdsl.model.capture.preserve import module_kept, patched
from ssdsl.model.capture.source_line import Place
from ssdsl.model.checks.errors import CustomGradient
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import tensors_in
from ssdsl.text.diagnostic import Diagnostic

SCALES = (1.0, -1e3, 1e6, 1e-3)  # factors of the incoming gradients
ALLOWED = 1e-3  # of the largest element; a half-precision type rounds by more
FAILS = "a comparison calls it again, and its forward then fails: {}: {}"
CHANGE = "write it with operators: `x + (y - x).detach()` has the value of `y` and the gradient of `x`"


def wrong_gradients(model: Model, functions: Mapping[type[Any], Place]) -> Iterator[Diagnostic]:
    """A diagnostic for every function of the model's forward whose backward is not its forward's derivative."""
    if not functions or model.is_meta:  # nothing runs on the meta device, so nothing can be wrong
        return
    found: dict[type[Any], str] = {}
    with module_kept(model.module), _compared(found):
        try:
            model.compute(model.example())
        except Exception:  # of a module that keeps a state between the two calls
            if not any(found.values()):
                raise
    for function, place in functions.items():
        if reason := found.get(function, "it was not called when the model ran by itself"):
            yield CustomGradient(place.span(), function.__name__, reason, place.where, CHANGE)


def _compared(found: dict[type[Any], str]) -> AbstractContextManager[None]:
    """A context in which each call of a custom function is checked after it ran. `found` collects the reason why a
    function is wrong; "" if it is not."""
    original: Any = vars(torch.autograd.Function)["apply"]  # a class method, of Python or, from torch 2.14 on, of C

    def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        function = original.__get__(None, cls)
        results = function(*args, **kwargs)
        if not cls.__module__.startswith(("torch.", "ssdsl.")) and not found.get(cls):
            try:
                found[cls] = _reason(lambda *given: function(*given, **kwargs), cls, args)
            except Exception as error:  # the user's code may raise anything
                found[cls] = FAILS.format(type(error).__name__, str(error).partition("\n")[0])
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


def _reason(apply: Callable[..., Any], cls: type[Any], args: tuple[Any, ...]) -> str:
    """The reason why a function's backward is wrong; "" if it is the derivative of the forward."""
    with torch.enable_grad():
        ours, theirs = _own(args), _own(args)
        custom = _tensors(apply(*ours))
        plain = _tensors(_forward(cls, theirs))
    if len(custom) != len(plain):
        return "its forward cannot be compared"
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
                return "it gives {:.4g} where the derivative of the forward is {:.4g}".format(*values)
    return ""


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
