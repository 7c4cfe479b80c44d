"""Reading a plan's file: UTF-8 text of bounded size."""

from pathlib import Path

from ssdsl.lang.errors.files import FileNotUtf8, FileTooLarge, FileUnreadable, NoSuchFile
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

LARGEST_BYTES = 1 << 18


def read_source(path: str | Path, name: str | None = None) -> Source:
    """The text of a plan; diagnostics call it `name`, by default the path as given. Raises PlanError."""
    name = name or str(path)
    data = _read_bytes(Path(path), name)
    if len(data) > LARGEST_BYTES:
        raise PlanError(FileTooLarge(None, name, LARGEST_BYTES // 1024))
    try:
        return Source(name, data.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as e:
        shown = Source(name, data.decode("utf-8", "backslashreplace"))
        at = len(data[: e.start].decode("utf-8", "backslashreplace"))
        raise PlanError(FileNotUtf8(Span(shown, at, at + 4), name, f"0x{data[e.start]:02x}")) from None


def _read_bytes(path: Path, name: str) -> bytes:
    """The bytes of a file, at most one more than is allowed."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise PlanError(NoSuchFile(None, name, _similar_file(path))) from None
    except IsADirectoryError:
        raise PlanError(FileUnreadable(None, name, "it is a folder")) from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise PlanError(FileUnreadable(None, name[:200], reason.lower())) from None


def _similar_file(path: Path) -> str:
    """A question such as "did you mean ...?" from the plans in the folder; empty if none is similar."""
    try:
        return suggest(path.name, sorted(p.name for p in path.parent.glob("*.ssp")))
    except (OSError, ValueError):
        return ""
