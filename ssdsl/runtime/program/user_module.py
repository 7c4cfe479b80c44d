"""Imports a user's file as a module, for options that name one: `--model`, `--data`."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

USER_PREFIX = "ssdsl_user_"  # begins the module name under which a user's file is imported


def import_file(path: Path, name: str) -> ModuleType:
    """Runs a file as the module `name`, with its folder first on the path, as Python runs a script."""
    sys.path.insert(0, str(path.resolve().parent))
    found = importlib.util.spec_from_file_location(name, path.resolve())
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module
