"""What a role's file imports by name is what it means, whichever modules inside the runtime were imported before."""

import importlib
import pkgutil
from types import ModuleType

import ssdsl.runtime


def test_no_module_takes_the_place_of_a_function() -> None:
    for module in pkgutil.iter_modules(ssdsl.runtime.__path__, "ssdsl.runtime."):
        importlib.import_module(module.name)
    assert not [name for name in ssdsl.runtime.NAMES if isinstance(getattr(ssdsl.runtime, name), ModuleType)]
