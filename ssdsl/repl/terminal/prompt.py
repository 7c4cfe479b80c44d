"""Reads entries from a terminal, with history, completion, colours and several lines."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer

from ssdsl.assist.highlight import STYLES, pieces
from ssdsl.interrupts import forget_interrupt
from ssdsl.repl.session import Session
from ssdsl.repl.terminal.blocks import goes_on, indentation
from ssdsl.repl.terminal.offers import offers

PROMPT, MORE = "ssp> ", "...  "


def prompted(current: Callable[[], Session]) -> Iterator[str]:
    """The entries of the user until Ctrl-D; Ctrl-C clears the line. `current` returns the session to complete for."""
    session: PromptSession[str] = PromptSession(
        history=_history(),
        auto_suggest=AutoSuggestFromHistory(),
        lexer=_Colours(),
        completer=_Offers(current),
        complete_while_typing=False,
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation=lambda width, line, wraps: [("fg:ansibrightblack", MORE)],
        reserve_space_for_menu=6,
    )
    while True:
        try:
            yield session.prompt([("bold fg:ansicyan", PROMPT)])
        except KeyboardInterrupt:
            forget_interrupt()
            continue
        except EOFError:
            return


def _history() -> History:
    """The history file of all sessions; a history in memory where that cannot be written."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    path = Path(folder if os.path.isabs(folder) else os.path.expanduser("~/.local/state")) / "ssdsl" / "repl_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.open("ab").close()
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Take the entry, or go on with it."""
        buffer = event.current_buffer
        before = buffer.document.text_before_cursor
        if goes_on(buffer.text) or (goes_on(before) and not buffer.document.is_cursor_at_the_end):
            buffer.insert_text("\n" + indentation(before))
        else:
            buffer.validate_and_handle()

    return keys


class _Colours(Lexer):
    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines

        def line(number: int) -> StyleAndTextTuples:
            text = lines[number] if number < len(lines) else ""
            return [(STYLES[kind][1], piece) for kind, piece in pieces(text)]

        return line


class _Offers(Completer):
    def __init__(self, current: Callable[[], Session]) -> None:
        self.current = current

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        for offer in offers(self.current(), document.text_before_cursor):
            yield Completion(offer.text, -offer.typed, display_meta=offer.about)
