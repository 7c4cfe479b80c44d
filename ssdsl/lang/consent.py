"""The user's consent to run a Python file that the header of a plan names as its model: for each file as it is."""

import hashlib
from contextlib import suppress
from pathlib import Path

from ssdsl.lang.assets import cache_folder


def model_file(model: str, folder: Path) -> tuple[Path, str] | None:
    """The Python file that a header names, beside the plan first, and the model by its path; None if it names none."""
    file, colon, function = model.partition(":")
    if not file.endswith(".py"):
        return None
    beside = folder / file
    path = beside if beside.exists() else Path(file)
    return path, f"{path}{colon}{function}"


def is_consented(path: Path) -> bool:
    """Whether the user wants to run this file."""
    with suppress(OSError, RuntimeError):  # where there can be no folder
        return _kept(path).exists()
    return False


def consent(path: Path) -> None:
    """Notes that the user wants to run this file, now and later."""
    with suppress(OSError, RuntimeError):
        kept = _kept(path)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()


def _kept(path: Path) -> Path:
    """The file that says so. Raises RuntimeError for a user without a home."""
    content = path.resolve().as_posix().encode() + b"\0" + (path.read_bytes() if path.exists() else b"")
    return cache_folder("consents") / hashlib.sha256(content).hexdigest()
