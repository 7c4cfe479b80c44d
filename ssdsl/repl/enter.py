"""What is entered, a statement, a block, a value to look at or a command, and what it leads to."""

from textwrap import dedent

from ssdsl.repl.commands import command
from ssdsl.repl.reply import Reply
from ssdsl.repl.session import Session
from ssdsl.repl.statement import statement
from ssdsl.text.diagnostic import PlanError


def enter(session: Session, text: str) -> tuple[Session, Reply]:
    """The next session and the answer; after a mistake the session is the same."""
    text = dedent(text).strip("\n")
    if not text.strip():
        return session, Reply()
    try:
        return command(session, text) if text.startswith(":") else statement(session, text)
    except PlanError as error:
        return session, Reply(error.diagnostics, failed=True)
