"""`:save`: writes the plan to a file, as a whole or not at all."""

from pathlib import Path

from ssdsl.lang.parse import parse
from ssdsl.lang.save import put_whole, reason_of
from ssdsl.plan.interpret import interpret_part
from ssdsl.repl.errors import CannotSave, FileExists
from ssdsl.repl.session import Session
from ssdsl.text.diagnostic import PlanError


def save(session: Session, name: str, overwrite: bool) -> Path:
    """Writes the plan. Raises PlanError if the file exists, or if files that the plan uses are not found from its
    folder."""
    path = Path(name).expanduser()
    path = path if path.suffix else path.with_suffix(".ssp")
    if path.exists() and not overwrite:
        raise PlanError(FileExists(None, str(path)))
    interpret_part(parse(session.draft.source), session.workspace.model, session.overrides, path.parent)
    try:
        put_whole(path, session.draft.text, overwrite=overwrite)
    except FileExistsError:
        raise PlanError(FileExists(None, str(path))) from None
    except OSError as e:
        raise PlanError(CannotSave(None, str(path), reason_of(e))) from None
    return path
