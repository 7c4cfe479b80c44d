"""The plan of a session as the compiler sees it: whole, or not accepted."""

from ssdsl.compile import Compiled, compile_source
from ssdsl.repl.session import Session


def compiled(session: Session) -> Compiled:
    """The plan and its program for the session's cluster; raises PlanError, also for what is missing."""
    draft, links = session.draft, session.outside.machine.links
    return compile_source(draft.source, session.graph, session.overrides, draft.folder, links)
