"""The words that may come next in an entry: those of a plan, or of a command."""

from collections.abc import Iterator
from pathlib import Path

from ssdsl.assist.complete.offers import fitting
from ssdsl.assist.complete.offers import offers as offers_of_plan
from ssdsl.assist.complete.supply import Offer
from ssdsl.repl.commands import COMMANDS, VIEW_COMMANDS
from ssdsl.repl.help import TOPICS
from ssdsl.repl.session import Session
from ssdsl.repl.views import VIEWS


def offers(session: Session, text: str) -> list[Offer]:
    """The words with which the end of this text may go on, the likeliest first."""
    if text.startswith(":"):
        return fitting(_of_command(text), text.rpartition(" ")[2] if " " in text else text)
    return offers_of_plan(session.facts, session.draft.text, text)


def _of_command(text: str) -> Iterator[Offer]:
    name, space, _ = text[1:].partition(" ")
    if not space:
        yield from (Offer(f":{c.name}", c.about) for c in (*COMMANDS.values(), *VIEW_COMMANDS.values()))
    elif name == "show":
        yield from map(Offer, VIEWS)
    elif name == "help":
        yield from map(Offer, TOPICS)
    elif name in ("load", "save!"):
        yield from (Offer(path.name) for path in sorted(Path().glob("*.ssp")))
