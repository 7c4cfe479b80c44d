"""Imports a user's file as a module, for options that name one: `--model`, `--data`."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

USER_PREFIX = "ssdsl_user_"  # begins the module name under which a user's file is imported


class _AsWritten(SourceFileLoader):
    """Compiles a file each time: Python takes what it has compiled before for a file of equal size and second."""

    def path_stats(self, path: object) -> dict[str, float]:
        raise OSError


def import_file(path: Path, name: str) -> ModuleType:
    """Runs a file as the module `name`, with its folder first on the path, as Python runs a script."""
    sys.path.insert(0, str(path.resolve().parent))
    file = path.resolve()
    found = importlib.util.spec_from_file_location(name, file, loader=_AsWritten(name, str(file)))
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module
