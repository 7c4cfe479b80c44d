"""Writes a file as a whole or not at all."""

import contextlib
import os
import re
from enum import StrEnum
from pathlib import Path

from ssdsl.lang.errors.files import FOREIGN, FileUnwritable
from ssdsl.text.diagnostic import PlanError

BEGINNING = 1 << 20  # bytes of a file in which a mark is sought


def save_text(file: str, text: str | bytes) -> None:
    """Writes a file as a whole. Raises PlanError if it cannot be written."""
    try:
        put_whole(Path(file), text)
    except (OSError, ValueError) as error:
        raise PlanError(FileUnwritable(None, file, reason_of(error))) from error


class FileMark(StrEnum):
    """A text in each file of a kind that ssdsl writes, as a regular expression."""

    PLAN = (
        r"(?m)^ *# (?:\w+ = \d+|not taken(?: \(.*\))?): |^# Imported from "  # a search's note on a number or a branch
    )
    GRAPH = r"(?s)\APK.{28}header\.json"
    COSTS = r'\A\{\s*"(?:unit|profile)"'
    TRACE = r'\A\{"traceEvents": \['
    PROFILER = r'\A\{"schemaVersion": 1, "distributedInfo": '
    PAGE = "default-src 'none'; style-src 'unsafe-inline'"
    CLUSTER = "ssdsl clusters measure"
    TP_PLAN = r'\A\{\s*"[\w.*]+": "\w*(?:colwise|rowwise|replicate|moe_|local_params|mla_)'
    PIPELINE = r"\A\d+F\d+,"


def check_file(file: str | None, mark: FileMark) -> None:
    """Raises PlanError if the file's folder does not exist or cannot be written, if the file is a folder, or if it has
    something else in it than ssdsl writes there: for use before long work whose result goes into the file."""
    if file is None:
        return
    check_folder(file)
    if Path(file).is_file() and not _is_ours(Path(file), mark):
        raise PlanError(FileUnwritable(None, file, FOREIGN))


def check_folder(file: str) -> None:
    """Raises PlanError if the file's folder does not exist or cannot be written, or if the file is a folder."""
    folder, reason = Path(file).resolve().parent, None
    if not folder.is_dir():
        reason = "no such file or directory"
    elif Path(file).is_dir():
        reason = "is a directory"
    elif not os.access(folder, os.W_OK):
        reason = "permission denied"
    if reason is not None:
        raise PlanError(FileUnwritable(None, file, reason))


def _is_ours(path: Path, mark: FileMark) -> bool:
    """Whether a file is empty, or its beginning has a mark."""
    try:
        with path.open("rb") as file:
            head = file.read(BEGINNING)
    except OSError:
        return False
    return not head or re.search(mark, head.decode("latin-1")) is not None


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
