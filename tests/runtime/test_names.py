"""What a role's file imports by name is what it means: no module inside the runtime has such a name."""

import pkgutil
from types import ModuleType

import ssdsl.runtime


def test_no_module_takes_the_place_of_a_function() -> None:
    modules = {module.name for module in pkgutil.iter_modules(ssdsl.runtime.__path__)}
    assert not modules & set(ssdsl.runtime.__all__)
    assert not any(isinstance(getattr(ssdsl.runtime, name), ModuleType) for name in ssdsl.runtime.__all__)
