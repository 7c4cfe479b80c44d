"""Finds the module that defines an operator: a program has to import it before it can call the operator."""

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch._library.custom_ops import OPDEFS
from torch._library.simple_registry import singleton

from ssdsl.model.ops.functions import FunctionClass
from ssdsl.runtime.program.user_module import USER_PREFIX

TORCH = ("aten", "prims", "prim")  # the namespaces of torch's own operators


def module_of(target: Any) -> str | None:
    """The name of the module that defines an operator, empty for torch's own; None if it is unknown or cannot be
    imported."""
    if target.namespace in TORCH:
        return ""
    names = (importable_name(module) for module in _modules(target))
    return next((name for name in names if name is not None), None)


def _modules(target: Any) -> list[ModuleType]:
    """The modules that may define an operator, as far as Python knows: that of its function, that of its fake
    implementation (`register_fake`), and one with the name of its namespace."""
    function = FunctionClass.of(target)
    if function is not None:
        return [sys.modules[function.found().__module__]]
    qualified = target.name().partition(".")[0]
    names = []
    if (definition := OPDEFS.get(qualified)) is not None:
        names.append(definition._init_fn.__module__)
    fake = singleton.find(qualified).fake_impl.kernel
    if fake is not None and (module := inspect.getmodule(fake.func)) is not None:
        names.append(module.__name__)
    if fake is not None:
        names.append(_of_file(fake.source.rpartition(":")[0]))
    names.append(target.namespace)  # a package of compiled operators often has their namespace as its name
    return [sys.modules[n] for n in dict.fromkeys(names) if n in sys.modules and not n.startswith("torch.")]


def _of_file(path: str) -> str:
    return next((n for n, m in list(sys.modules.items()) if getattr(m, "__file__", None) == path), "")


def importable_name(module: ModuleType) -> str | None:
    """The name under which another process can import the module's file; None if there is none."""
    name = module.__name__.removeprefix(USER_PREFIX)
    file = getattr(module, "__file__", None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or file is None or spec.origin is None or Path(spec.origin).resolve() != Path(file).resolve():
        return None
    return name
