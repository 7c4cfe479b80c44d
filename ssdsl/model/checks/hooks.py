"""Finds hooks that a captured graph never calls: those that run in the backward, or on every module."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from ssdsl.model.capture.source_line import module_name, of_function
from ssdsl.model.checks.errors import HookLost
from ssdsl.text.diagnostic import Diagnostic

# attributes of torch's modules, weights and of all modules together, in which it keeps hooks
OF_MODULE = {"_backward_hooks": "the backward hook", "_backward_pre_hooks": "the backward pre-hook"}
OF_WEIGHT = {"_backward_hooks": "the gradient hook", "_post_accumulate_grad_hooks": "the post-accumulate hook"}
OF_ALL = {
    "_global_forward_pre_hooks": "the forward pre-hook",
    "_global_forward_hooks": "the forward hook",
    "_global_backward_pre_hooks": "the backward pre-hook",
    "_global_backward_hooks": "the backward hook",
}


def lost_hooks(module: nn.Module) -> Iterator[Diagnostic]:
    """A diagnostic for every hook that the captured graph would not call."""
    for name in OF_ALL:
        yield from _each(OF_ALL[name], "all modules", getattr(torch_module, name))
    for path, one in module.named_modules():
        for name in OF_MODULE:
            yield from _each(OF_MODULE[name], module_name(path), getattr(one, name, None))
    for path, weight in module.named_parameters():
        for name in OF_WEIGHT:
            yield from _each(OF_WEIGHT[name], f"weight `{path}`", getattr(weight, name, None))


def _each(hook: str, owner: str, hooks: Mapping[int, Any] | None) -> Iterator[Diagnostic]:
    for function in (hooks or {}).values():
        place = of_function(function)
        yield HookLost(place.span() if place else None, f"{hook} `{_name(function)}`", owner)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).replace("<lambda>", "lambda")
