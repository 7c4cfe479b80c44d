"""The plan of a session as the compiler sees it: whole, or not accepted."""

from ssdsl.compile import Compiled, compile_source
from ssdsl.repl.session import Session


def compiled(session: Session) -> Compiled:
    """The plan and its program; raises PlanError, also for what is missing."""
    return compile_source(session.draft.source, session.graph, session.overrides, session.draft.folder)
