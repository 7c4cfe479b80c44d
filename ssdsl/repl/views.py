"""`:show`: the views of `ssdsl show`; those that do not need a complete plan work without one."""

from collections.abc import Callable, Iterable, Iterator

from ssdsl.plan.interpret import plan_of
from ssdsl.record import replace
from ssdsl.repl.session import Session, Shown
from ssdsl.show.tables.communication import communication_view
from ssdsl.show.tables.operators import dims_view, operators_view
from ssdsl.show.tables.program import shown_graph, shown_program
from ssdsl.show.tables.tasks import tasks_views
from ssdsl.simulate.report import Report
from ssdsl.workspace import Compiled


def view(session: Session, name: str) -> tuple[Shown, ...]:
    """The view of this name (`VIEWS`). Raises PlanError if it needs a complete plan, and this is none."""
    return tuple(VIEWS[name](session))


def simulated(session: Session) -> Report:
    """Simulates the plan, which must be complete, on the session's cluster."""
    return session.outside.machine.simulate(compiled(session))


def _schedule(session: Session) -> Iterator[Shown]:
    from ssdsl.show.charts.gantt import gantt

    yield gantt(simulated(session).timeline, session.outside.width())


def _memory(session: Session) -> Iterator[Shown]:
    from ssdsl.show.tables.memory import memory_curve, memory_views

    timeline = simulated(session).timeline
    yield from memory_views(timeline)
    yield memory_curve(timeline, session.outside.width())


VIEWS: dict[str, Callable[[Session], Iterable[Shown]]] = {
    "dims": lambda session: [dims_view(session.graph)],
    "ops": lambda session: [operators_view(plan_of(session.facts.context))],
    "graph": lambda session: [shown_graph(session.graph)],
    "tasks": lambda session: tasks_views(compiled(session).program),
    "comm": lambda session: [communication_view(compiled(session).program)],
    "program": lambda session: [shown_program(compiled(session).program)],
    "schedule": _schedule,
    "memory": _memory,
}


def compiled(session: Session, text: str | None = None) -> Compiled:
    """The compiled plan, or another text of it, for the session's cluster. Raises PlanError, also for a plan that is
    not complete."""
    draft = session.draft if text is None else replace(session.draft, text=text)
    return session.workspace.compile(draft.source, session.overrides, draft.folder)
