"""The plan of a session as the compiler sees it: whole, or not accepted."""

from ssdsl.repl.session import Session
from ssdsl.workspace import Compiled


def compiled(session: Session) -> Compiled:
    """The plan and its program for the session's cluster; raises PlanError, also for what is missing."""
    draft = session.draft
    return session.workspace.compile(draft.source, session.overrides, draft.folder)
