"""Modules without `torch.compile`, which wraps a module into another one. Capture follows the code of the module
inside, and the programs that ssdsl writes run its operators one by one.

Names of weights and modules are those without the wrapper, `body.0.weight` and not `body._orig_mod.0.weight`, as
`torch.distributed.checkpoint` has them too. So a checkpoint fits the module whether it is compiled or not.
"""

import copy
import sys
from collections.abc import Iterator

from torch import nn

from ssdsl.identity import ByIdentity
from ssdsl.model.load.errors import NotCompiled
from ssdsl.text.source import Span


def uncompiled(module: nn.Module, span: Span | None) -> tuple[nn.Module, tuple[NotCompiled, ...]]:
    """The module with the ones inside of wrappers in their place, and a warning at `span` if there are any. The given
    module stays as it is: those around a wrapper are copied, and all of them share weights and buffers."""
    names = tuple(dict.fromkeys(_compiled(module)))
    if not names:
        return module, ()
    return _unwrapped(module, ByIdentity()), (NotCompiled(span, names),)


def _compiled(module: nn.Module) -> Iterator[str]:
    """Yields the names of compiled modules: those in a wrapper, and those that `module.compile()` has compiled."""
    for name, found in module.named_modules():
        if _is_wrapper(found) or getattr(found, "_compiled_call_impl", None) is not None:
            yield ".".join(part for part in name.split(".") if part != "_orig_mod")


def _is_wrapper(module: nn.Module) -> bool:
    """Whether `torch.compile(module)` has made it. Without a call of it torch has not loaded the wrapper's class."""
    loaded = sys.modules.get("torch._dynamo.eval_frame")
    return loaded is not None and isinstance(module, loaded.OptimizedModule)


def _unwrapped(module: nn.Module, known: ByIdentity[nn.Module, nn.Module]) -> nn.Module:
    """The module without wrappers; `known` has those that were visited."""
    if module not in known:
        if _is_wrapper(module):
            known[module] = _unwrapped(module.get_submodule("_orig_mod"), known)
        else:
            known[module] = _with_children(module, known)
    return known[module]


def _with_children(module: nn.Module, known: ByIdentity[nn.Module, nn.Module]) -> nn.Module:
    inside = {name: None if m is None else _unwrapped(m, known) for name, m in module._modules.items()}
    if all(inside[name] is m for name, m in module._modules.items()):
        return module
    made = copy.copy(module)
    made.__dict__["_modules"] = inside
    return made
