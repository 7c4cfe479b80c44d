"""Contexts that restore what runs in them may change: attributes of torch's own classes, and a module's attributes,
weights and buffers with the random generators; one that silences it, and one that hides it from torch.export."""

import contextlib
import io
import logging
import random
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._C import _len_torch_function_stack
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import _pop_mode, _push_mode


@contextlib.contextmanager
def patched(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """A context in which an attribute of a module or a class is another one; a class that inherits it has it again."""
    own = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def without_tensor_metadata() -> contextlib.AbstractContextManager[None]:
    """A context in which torch writes the tensor of each traced call down once, and not also its sizes, strides and
    memory format, which nothing reads: a fifth of what an export takes."""
    return patched(proxy_tensor, "_extract_tensor_metadata", lambda tensor: None)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """A context whose operators torch.export does not record: without its modes, which see operators and functions."""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]  # type: ignore[no-untyped-call]
    try:
        with disable_proxy_modes_tracing():
            yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """Restores every attribute of every module on exit, and the contents of lists, dictionaries and sets among them."""
    every = [(one, dict(vars(one))) for one in module.modules()]
    contents = [_copy(value) for _, held in every for value in held.values() if _holds(value)]
    try:
        yield
    finally:
        for one, held in every:
            vars(one).clear()
            vars(one).update(held)
        for container, copied in contents:
            _fill(container, copied)


@contextlib.contextmanager
def module_kept(module: nn.Module) -> Iterator[None]:
    """A context that also restores the values of weights and buffers and the states of random generators, and drops
    gradients."""
    tensors = [*module.parameters(), *module.buffers()]
    numbers = [(t, t.detach().clone(), t.requires_grad) for t in tensors]
    drawn = random.getstate()
    with torch.random.fork_rng(devices=[]), attributes_kept(module):
        try:
            yield
        finally:
            random.setstate(drawn)
            with torch.no_grad():
                for tensor, number, learns in numbers:
                    if not (tensor.is_meta or torch.equal(tensor, number)):
                        tensor.copy_(number)
                    tensor.requires_grad_(learns)
                    tensor.grad = None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context without prints, warnings and log messages: torch.export prints the whole graph when it fails."""
    level, held = logging.root.manager.disable, io.StringIO()
    if level < logging.ERROR:  # else it is so already: each change makes all loggers forget what they know
        logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(held), contextlib.redirect_stderr(held):
            warnings.simplefilter("ignore")
            yield
    finally:
        if level < logging.ERROR:
            logging.disable(level)


def _holds(value: Any) -> bool:
    return isinstance(value, (list, dict, set, deque))


def _copy(container: Any) -> tuple[Any, Any]:
    return container, type(container)(container) if type(container) in (list, set, deque) else dict(container)


def _fill(container: Any, contents: Any) -> None:
    if isinstance(container, (dict, set)):
        if isinstance(container, dict) or container != contents:
            container.clear()
            container.update(contents)
    else:
        container.clear()
        container.extend(contents)
