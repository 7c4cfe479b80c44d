"""Compiles the plan of a session."""

from ssdsl.repl.session import Session
from ssdsl.workspace import Compiled


def compiled(session: Session) -> Compiled:
    """The compiled plan, for the session's cluster. Raises PlanError, also for a plan that is not complete."""
    draft = session.draft
    return session.workspace.compile(draft.source, session.overrides, draft.folder)
