"""The server: each message of the protocol, and what is done about it."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.uris import to_fs_path

from ssdsl.lsp import answers
from ssdsl.lsp.beside import Answer
from ssdsl.lsp.plans import OpenPlan
from ssdsl.lsp.tokens import LEGEND
from ssdsl.lsp.watch import PlanServer

COMMANDS = ("check", "prove", "simulate", "search")
TRIGGERS = [".", " ", "[", '"', "("]
ANSWERS: tuple[tuple[str, Callable[[OpenPlan, Any], Any], Any], ...] = (
    (types.TEXT_DOCUMENT_COMPLETION, answers.complete, types.CompletionOptions(trigger_characters=TRIGGERS)),
    (types.TEXT_DOCUMENT_HOVER, answers.hover, None),
    (types.TEXT_DOCUMENT_DEFINITION, answers.definition, None),
    (types.TEXT_DOCUMENT_REFERENCES, answers.references, None),
    (types.TEXT_DOCUMENT_RENAME, answers.rename, None),
    (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, answers.symbols, None),
    (types.TEXT_DOCUMENT_FOLDING_RANGE, answers.folding, None),
    (types.TEXT_DOCUMENT_FORMATTING, answers.formatted, None),
    (types.TEXT_DOCUMENT_INLAY_HINT, answers.inlay_hints, None),
    (types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, answers.coloured, LEGEND),
    (types.TEXT_DOCUMENT_CODE_ACTION, answers.actions, types.CodeActionOptions([types.CodeActionKind.QuickFix])),
)

server = PlanServer()

# -- documents ---------------------------------------------------------------------------------------------------------


@server.feature(types.TEXT_DOCUMENT_DID_OPEN)
def opened(ls: PlanServer, params: types.DidOpenTextDocumentParams) -> None:
    """A plan is opened."""
    document = params.text_document
    path = Path(to_fs_path(document.uri) or "plan.ssp")
    ls.plans[document.uri] = OpenPlan.of(path, document.text)
    ls.changed(document.uri)


@server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
def changed(ls: PlanServer, params: types.DidChangeTextDocumentParams) -> None:
    """A key was pressed."""
    uri = params.text_document.uri
    if (plan := ls.plans.get(uri)) is not None:
        plan.change(ls.workspace.get_text_document(uri).source)
        ls.changed(uri)


@server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
def closed(ls: PlanServer, params: types.DidCloseTextDocumentParams) -> None:
    """A plan is closed: nothing more is told of it."""
    uri = params.text_document.uri
    ls.tell(uri, [])
    ls.plans.pop(uri, None)
    if (task := ls.work.pop(uri, None)) is not None:
        task.cancel()


@server.feature(types.SHUTDOWN)
async def shut_down(ls: PlanServer, params: None) -> None:
    """The editor ends: so do the helpers."""
    await ls.close()


# -- answers -----------------------------------------------------------------------------------------------------------


def _answer(method: str, answer: Callable[[OpenPlan, Any], Any], options: Any) -> None:
    @server.feature(method, options)
    def answered(ls: PlanServer, params: Any) -> Any:
        plan = ls.plans.get(params.text_document.uri)
        return None if plan is None else answer(plan, params)


for _row in ANSWERS:
    _answer(*_row)


# -- commands ----------------------------------------------------------------------------------------------------------


def _command(word: str) -> None:
    @server.command(f"ssdsl.{word}")
    async def run(ls: PlanServer, uri: str) -> Answer:
        """Runs a command of ssdsl on the saved file, and returns its `status` and what it prints."""
        path = to_fs_path(uri) or uri
        plan = ls.plans.get(uri)
        with suppress(OSError):
            if plan is not None and Path(path).read_text("utf-8") != plan.source.text:
                return {"status": 2, "text": f"{path} is not saved: save it first"}
        return await _ran([word, path], Path(path).parent)


async def _ran(words: Sequence[str], folder: Path) -> Answer:
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    command = (sys.executable, "-P", "-m", "ssdsl", *words)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=both, cwd=folder
    )
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    return {"status": process.returncode, "text": said.decode("utf-8", "replace")}


for _word in COMMANDS:
    _command(_word)


def serve() -> None:
    """Serves an editor by stdin and stdout until it ends."""
    server.start_io()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the server has closed it, and commands flush it at their end
