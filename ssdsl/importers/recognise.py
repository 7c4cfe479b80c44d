"""Recognises what a user gives to `ssdsl import`, and reads it."""

from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from ssdsl.importers.errors import NothingToImport
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.lang.errors.files import FileUnreadable
from ssdsl.lang.header import IN_HEADER
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

# The names of `--from`, in the order in which a source is tried: the file of each, beside this one.
IMPORTERS: dict[str, str] = {
    "trace": "kineto",
    "pipeline": "pipeline_table",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
    "megatron": "megatron",
    "transformers": "transformers_plans",
}
LARGEST_BYTES = 1 << 31  # traces are large
SHOWN = 60  # characters of a command line in an error


def foreign(given: str) -> Foreign:
    """What the user typed: the file that it names, or itself. Raises PlanError for a file that cannot be read."""
    try:
        path = Path(given) if "\n" not in given and Path(given).exists() else None
    except (OSError, ValueError):  # too long for a name
        path = None
    if path is None or path.is_dir():
        return Foreign(given, given, path)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise PlanError(FileUnreadable(None, given, f"it is larger than {LARGEST_BYTES >> 30} GiB"))
        return Foreign(given, path.read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff"), path)
    except OSError as error:
        raise PlanError(FileUnreadable(None, given, (error.strerror or str(error)).lower())) from None


def imported(given: str, kind: str | None = None) -> Imported:
    """What an importer makes of a source: the one named `kind`, or else the first that recognises it. Raises
    PlanError."""
    source = foreign(given)
    names = [kind] if kind is not None else [*IMPORTERS]
    importer = next((own for own in map(_importer, names) if kind is not None or own.recognises(source)), None)
    if importer is None:
        raise PlanError(NothingToImport(None, _shown(source), _reason(source), ", ".join(IMPORTERS)))
    found: Imported = importer.read(source)
    return replace(found, text=_with_origin(found, source)) if found.is_plan else found


def _importer(name: str) -> ModuleType:
    found: ModuleType = resolve_name(f"ssdsl.importers.{IMPORTERS[name]}")
    return found


def _shown(source: Foreign) -> str:
    return source.given if len(source.given) <= SHOWN else f"{source.given[:SHOWN]}..."


def _reason(source: Foreign) -> str:
    if source.path is not None:
        return f"{'it is a folder' if source.path.is_dir() else 'nothing in the file is of a tool that is known'}"
    is_path = not any(character.isspace() for character in source.given) and not source.given.startswith("-")
    return "there is no such file" if is_path else "no flag of it is known"


def _with_origin(found: Imported, source: Foreign) -> str:
    """The text of a plan with a comment that says what it comes from, behind its header."""
    lines = found.text.splitlines()
    at = next((n for n, line in enumerate(lines) if not IN_HEADER.match(line)), len(lines))
    name = source.path.name if source.path is not None else found.model if source.given.startswith("hf:") else ""
    origin = f"# Imported from {name}: {found.kind}." if name else f"# Imported from {found.kind}."
    return "".join(f"{line}\n" for line in [*lines[:at], origin, *lines[at:]])
