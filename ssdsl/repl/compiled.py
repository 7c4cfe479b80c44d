"""The plan of a session as the compiler sees it: whole, or not accepted."""

from ssdsl.compile import Compiled
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.plan.interpret import interpret_all
from ssdsl.repl.session import Session


def compiled(session: Session) -> Compiled:
    """The plan and its schedule; raises PlanError, also for what is missing."""
    source = session.draft.source
    plan, warnings = interpret_all(parse(source), session.graph, session.overrides, session.draft.folder)
    return Compiled(source, plan, lower(plan), warnings)
