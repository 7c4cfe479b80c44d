"""Statements: taken whole or not at all, and answered with what they did. A value alone is shown and not kept."""

from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.errors import NothingSaid
from ssdsl.lang.parse import parse
from ssdsl.plan.check import warnings
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.repl.changes import changes
from ssdsl.repl.describe import shown
from ssdsl.repl.reply import Reply
from ssdsl.repl.session import Draft, Facts, Session, advanced, drafts_of, facts_of, tidy
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source


def statement(session: Session, text: str) -> tuple[Session, Reply]:
    """The session with these statements; raises PlanError where they are wrong."""
    old = session.draft
    draft = Draft(f"{old.text}{text}\n", old.folder, old.name)
    try:
        script = parse(draft.source)
    except PlanError as error:
        if isinstance(error.diagnostics[0], NothingSaid) and (e := _expression(session, text)):
            return session, _answer(session, e)
        raise
    new = [s for s in script.statements if s.span.end > len(old.text)]
    facts = facts_of(draft, script, session.graph, session.overrides)
    said = changes(session.facts, facts)
    if not said and len(new) == 1 and isinstance(new[0], nodes.Do) and _value(session, new[0].call) is not None:
        return session, _answer(session, new[0].call)
    kept = tidy(draft, script)
    drafts = drafts_of(kept, parse(kept.source), len(script.statements) - len(new))
    warned = _warnings(session.facts, facts)
    return advanced(session, drafts, facts), Reply((*(said or _nothing_new(new, warned)), *warned))


def _expression(session: Session, text: str) -> nodes.Expr | None:
    """The value that a text spells, if it is one and nothing else; its lines are numbered as they follow the plan's."""
    before = session.draft.text.count("\n") - 1
    source = Source(session.draft.name, "\n" * before + f"let value = (\n{text}\n)\n")
    match parse(source).statements:
        case (nodes.Let(_, None, value),):
            return value
    return None


def _answer(session: Session, e: nodes.Expr) -> Reply:
    facts = _facts(session)
    return Reply(shown(facts.context, evaluate(facts.context, facts.scope, e)))


def _value(session: Session, e: nodes.Expr) -> Any:
    facts = _facts(session)
    return evaluate(facts.context, facts.scope, e)


def _facts(session: Session) -> Facts:
    """The facts anew: evaluating a call may add to them."""
    return facts_of(session.draft, parse(session.draft.source), session.graph, session.overrides)


def _warnings(before: Facts, after: Facts) -> tuple[Diagnostic, ...]:
    """Those that the plan did not have before."""
    known = len(warnings(before.context, before.source))
    return tuple(warnings(after.context, after.source)[known:])


def _nothing_new(new: list[nodes.Statement], warned: tuple[Diagnostic, ...]) -> tuple[str, ...]:
    if not new or warned:
        return ()
    holds = all(isinstance(s, nodes.Require) for s in new)
    return ("this holds" if holds else "this says nothing that the plan did not say before",)
