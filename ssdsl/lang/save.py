"""Writes a file as a whole or not at all."""

import contextlib
import os
from pathlib import Path

from ssdsl.lang.errors.files import FileUnwritable
from ssdsl.text.diagnostic import PlanError


def save_text(file: str, text: str | bytes) -> None:
    """Writes a file as a whole. Raises PlanError if it cannot be written."""
    try:
        put_whole(Path(file), text)
    except (OSError, ValueError) as error:
        raise PlanError(FileUnwritable(None, file, reason_of(error))) from error


def check_folder(file: str | None) -> None:
    """Raises PlanError if the file's folder does not exist or cannot be written, or if the file is a folder: for
    use before long work whose result goes into the file."""
    if file is None:
        return
    folder = Path(file).resolve().parent
    if not folder.is_dir():
        raise PlanError(FileUnwritable(None, file, "no such file or directory"))
    if Path(file).is_dir():
        raise PlanError(FileUnwritable(None, file, "is a directory"))
    if not os.access(folder, os.W_OK):
        raise PlanError(FileUnwritable(None, file, "permission denied"))


def put_whole(path: Path, text: str | bytes, *, overwrite: bool = True) -> None:
    """Writes a temporary file in the same folder, then gives it the file's name. Raises OSError, or ValueError for an
    invalid name; FileExistsError where the file exists and must not be overwritten."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text if isinstance(text, bytes) else text.encode())
        if overwrite:
            beside.replace(path)
        else:
            os.link(beside, path)  # fails where a file of the name has come up meanwhile
    finally:
        with contextlib.suppress(OSError, ValueError):  # the file was never created; the caller reports why
            beside.unlink(missing_ok=True)


def reason_of(error: Exception) -> str:
    """The system's words for why a file could not be written."""
    return (getattr(error, "strerror", None) or str(error)).lower()
