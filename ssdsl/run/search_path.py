"""The folders in which this process finds modules, for other processes that import the modules of operators."""

import os
import sys
from pathlib import Path


def search_path() -> str:
    """A PYTHONPATH of the folders in which this process finds modules, without Python's own."""
    own = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix)}
    paths = [Path(p or ".").resolve() for p in sys.path]
    return os.pathsep.join(dict.fromkeys(str(p) for p in paths if own.isdisjoint((p, *p.parents))))
