"""`:save`: the plan as a file, written beside and then given its name, so that it is never there by half."""

import os
from pathlib import Path

from ssdsl.lang.parse import parse
from ssdsl.plan.interpret import interpret_part
from ssdsl.repl.errors import CannotSave, FileExists
from ssdsl.repl.session import Session
from ssdsl.text.diagnostic import PlanError


def save(session: Session, name: str, overwrite: bool) -> Path:
    """Write the plan; raises PlanError if the file exists, or what the plan uses is not found from its folder."""
    path = Path(name).expanduser()
    path = path if path.suffix else path.with_suffix(".ssp")
    if path.exists() and not overwrite:
        raise PlanError(FileExists(None, str(path)))
    interpret_part(parse(session.draft.source), session.graph, session.overrides, path.parent)
    try:
        _write(path, session.draft.text, overwrite)
    except FileExistsError:
        raise PlanError(FileExists(None, str(path))) from None
    except OSError as e:
        raise PlanError(CannotSave(None, str(path), (e.strerror or str(e)).lower())) from None
    return path


def _write(path: Path, text: str, overwrite: bool) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if overwrite:
            beside.replace(path)
        else:
            os.link(beside, path)  # fails where a file of the name has come up meanwhile
    finally:
        beside.unlink(missing_ok=True)
