"""Reports a bug of ssdsl to its user: one short message, with the traceback in a file."""

import os
import platform
import sys
import tempfile
import traceback

import ssdsl
from ssdsl.cli.terminal import talk


def report_bug(error: Exception) -> None:
    """Saves the traceback, and says where it is and what to do with it."""
    path = _save(error)
    talk.print(f"internal error in ssdsl: {type(error).__name__}: {error}", style="bold red", markup=False)
    talk.print(f"the traceback is in {path}; report it with the plan and the model", markup=False)


def _save(error: Exception) -> str:
    handle, path = tempfile.mkstemp(prefix="ssdsl-bug-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        print(f"ssdsl {ssdsl.__version__}, Python {platform.python_version()}, {platform.platform()}", file=file)
        print(f"command: {sys.argv[1:]}", file=file)
        traceback.print_exception(error, file=file)
    return path
