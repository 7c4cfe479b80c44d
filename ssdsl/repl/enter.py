"""Handles an entry: a statement, a block, a value to look at, or a command.

Statements are accepted as a whole or not at all, and the answer says what they did. A value alone is shown, not kept.
"""

from textwrap import dedent

from ssdsl.assist.changes import changes
from ssdsl.assist.describe import shown
from ssdsl.assist.reading import DraftReading, expression
from ssdsl.lang import nodes
from ssdsl.lang.errors.text import UnusedValue
from ssdsl.lang.parse import parse
from ssdsl.plan.check import warnings
from ssdsl.plan.values import Value
from ssdsl.repl.commands import command
from ssdsl.repl.session import (
    Draft,
    Reply,
    Session,
    advanced,
    drafts_of,
    facts_of,
    tidy,
)
from ssdsl.text.diagnostic import Diagnostic, PlanError

COMMANDS_OF_OTHERS = {
    "help": ":help",
    "quit": ":quit",
    "exit": ":quit",
    "undo": ":undo",
    "redo": ":redo",
}  # words that other prompts accept


def enter(session: Session, text: str) -> tuple[Session, Reply]:
    """The next session and the answer; after a mistake the session is unchanged."""
    text = dedent(text).strip("\n")
    if not text.strip():
        return session, Reply()
    if text.strip() not in session.facts.context.scope.values:
        text = COMMANDS_OF_OTHERS.get(text.strip(), text)
    try:
        return command(session, text) if text.startswith(":") else _statement(session, text)
    except PlanError as error:
        return session, Reply(error.diagnostics, failed=True)


def _statement(session: Session, text: str) -> tuple[Session, Reply]:
    """The session with these statements, and the answer; raises PlanError if they are wrong."""
    old = session.draft
    draft = Draft(f"{old.text}{text}\n", old.folder, old.name)
    try:
        script = parse(draft.source)
    except PlanError as error:
        above = old.text.count("\n") - 1
        if isinstance(error.diagnostics[0], UnusedValue) and (e := expression(text, old.name, above)) is not None:
            return session, _answer(session, session.facts.look(e))
        raise
    new = [s for s in script.statements if s.span.end > len(old.text)]
    facts = facts_of(draft, script, session.workspace, session.overrides)
    said = changes(session.facts, facts)
    if not said and (value := _value_of(session, new)) is not None:
        return session, _answer(session, value)
    kept = tidy(draft, script)
    drafts = drafts_of(kept, parse(kept.source), len(script.statements) - len(new))
    warned = _warnings(session.facts, facts)
    return advanced(session, drafts, facts), Reply((*(said or _nothing_new(new, warned)), *warned))


def _value_of(session: Session, new: list[nodes.Statement]) -> Value:
    """The value of a single call; None if it has none, or if there are other statements."""
    match new:
        case [nodes.Do(call)]:
            return session.facts.look(call)
    return None


def _answer(session: Session, value: Value) -> Reply:
    return Reply(shown(session.facts.context, value))


def _warnings(before: DraftReading, after: DraftReading) -> list[Diagnostic]:
    """The warnings that the plan did not have before."""
    known = {_place(d) for d in _all_warnings(before)}
    return [d for d in _all_warnings(after) if _place(d) not in known]


def _all_warnings(reading: DraftReading) -> list[Diagnostic]:
    return warnings(reading.context.facts, reading.context.model, reading.source)


def _place(warning: Diagnostic) -> tuple[str, str, str]:
    """A key of a warning, which does not change when text is added below."""
    return warning.code, warning.text(warning.title), str(warning.span)


def _nothing_new(new: list[nodes.Statement], warned: list[Diagnostic]) -> tuple[str, ...]:
    if not new or warned:
        return ()
    holds = all(isinstance(s, nodes.RequireStatement) for s in new)
    return ("this holds" if holds else "no change: the plan already says this",)
