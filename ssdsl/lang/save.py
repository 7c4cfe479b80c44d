"""Writes a text file whole or not at all."""

import contextlib
from pathlib import Path

from ssdsl.lang.errors import FileUnwritable
from ssdsl.text.diagnostic import PlanError


def save_text(file: str, text: str) -> None:
    """Writes beside the file, then puts it in its place. Raises PlanError where that cannot be."""
    path = Path(file)
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(OSError, ValueError):
            beside.unlink(missing_ok=True)
        raise PlanError(FileUnwritable(None, file, reason.lower())) from error
