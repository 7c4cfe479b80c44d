"""The server, driven as an editor drives it: mistakes while typing with their changes, and what it answers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

PLAN = """\
# for: --model gpt:tiny --cluster a100x8 --set T=2

use pipeline: one_f_one_b

param T = 4 "tensor-parallel width"
param S = 2
param M = 4

mesh gpus(pp = S, tp = T)
split model by batch into m = M
split model by heads into tp
split model by ffn into tp
let stage = balance(model, S)
assign stage[s] to gpus[pp = s] for s in 0..S
one_f_one_b(stage, M)
"""


class Editor:
    """An open plan."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client, self.uri, self.version, self.text = client, path.as_uri(), 0, ""

    def open(self, text: str) -> None:
        self.text = text
        item = types.TextDocumentItem(self.uri, "ssp", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def type(self, text: str) -> None:
        self.version, self.text = self.version + 1, text
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    def at(self, words: str, behind: bool = False) -> dict[str, Any]:
        offset = self.text.index(words) + (len(words) if behind else 0)
        before = self.text[:offset]
        position = types.Position(before.count("\n"), offset - before.rfind("\n") - 1)
        return {"text_document": types.TextDocumentIdentifier(self.uri), "position": position}

    async def until(self, right: Callable[[list[types.Diagnostic]], bool]) -> list[types.Diagnostic]:
        for _ in range(600):
            found = [*self.client.diagnostics.get(self.uri, ())]
            if right(found):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(found)

    @property
    def document(self) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri)


async def soon(ask: Callable[[], Awaitable[Any]], right: Callable[[Any], bool]) -> Any:
    """The first right answer."""
    for _ in range(600):
        if right(found := await ask()):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(found)


@pytest_lsp.fixture(config=ClientServerConfig(server_command=[sys.executable, "-m", "ssdsl", "lsp"]))
async def client(lsp_client: LanguageClient) -> AsyncIterator[None]:
    params = types.InitializeParams(capabilities=client_capabilities("visual-studio-code"))
    await lsp_client.initialize_session(params)
    yield
    await lsp_client.shutdown_session()


@pytest.mark.asyncio
async def test_mistakes_and_their_changes(client: LanguageClient, tmp_path: Path) -> None:
    editor = Editor(client, tmp_path / "p.ssp")
    editor.open(PLAN.replace("heads", "headz").replace("assign", "asign"))
    found = await editor.until(lambda found: len(found) == 2)
    assert {d.code for d in found} == {"E0110", "E0204"}
    wrong = next(d for d in found if d.code == "E0204")
    asked = types.CodeActionParams(editor.document, wrong.range, types.CodeActionContext([wrong]))
    first, *others = await client.text_document_code_action_async(asked)
    (edit,) = first.edit.changes[editor.uri]
    assert (first.title, edit.new_text, edit.range) == ("write `heads`", "heads", wrong.range)
    assert [len(a.edit.changes[editor.uri]) for a in others if a.title == "make all changes that helps name"] == [2]
    editor.type(PLAN)
    await editor.until(lambda found: not found)
    editor.type(PLAN.replace("heads into tp", "heads into tp = 3"))
    (wrong,) = await editor.until(bool)
    assert wrong.code == "E0203" and "help: " in wrong.message


@pytest.mark.asyncio
async def test_what_a_place_is(client: LanguageClient, tmp_path: Path) -> None:
    editor = Editor(client, tmp_path / "p.ssp")
    editor.open(PLAN)
    everywhere = types.InlayHintParams(editor.document, types.Range(types.Position(0, 0), types.Position(20, 0)))
    hints = await soon(lambda: client.text_document_inlay_hint_async(everywhere), bool)
    assert "142 operators, parts of 2 (8)" in [h.label for h in hints]
    hover = await client.text_document_hover_async(types.HoverParams(**editor.at("heads")))
    assert "4 in 56 operators" in hover.contents.value
    at_split = types.HoverParams(**editor.at("split model by heads"))
    hover = await soon(  # the compiler's word on a line comes later
        lambda: client.text_document_hover_async(at_split), lambda hover: "peak memory" in hover.contents.value
    )
    assert "split 56 operators by heads into 2 parts, tp, over gpus" in hover.contents.value
    assert "all_reduce, forward, of transformer.h.*.attn.c_proj" in hover.contents.value


@pytest.mark.asyncio
async def test_names(client: LanguageClient, tmp_path: Path) -> None:
    editor = Editor(client, tmp_path / "p.ssp")
    editor.open(PLAN)
    at_library = types.DefinitionParams(**editor.at("one_f_one_b("))
    there = await soon(lambda: client.text_document_definition_async(at_library), lambda there: there.uri != editor.uri)
    assert there.uri.endswith("stdlib/pipeline.ssp")
    there = await client.text_document_definition_async(types.DefinitionParams(**editor.at("gpus[pp")))
    assert there.range.start.line == PLAN[: PLAN.index("mesh")].count("\n")
    asked = types.ReferenceParams(**editor.at("S = 2"), context=types.ReferenceContext(True))
    assert len(await client.text_document_references_async(asked)) == 4
    renamed = await client.text_document_rename_async(types.RenameParams(**editor.at("stage ="), new_name="piece"))
    assert len(renamed.changes[editor.uri]) == 3
    names = await client.text_document_document_symbol_async(types.DocumentSymbolParams(editor.document))
    assert [n.name for n in names] == ["one_f_one_b", "T", "S", "M", "gpus", "stage"]
    colours = await client.text_document_semantic_tokens_full_async(types.SemanticTokensParams(editor.document))
    assert len(colours.data) % 5 == 0 and len(colours.data) > 200


@pytest.mark.asyncio
async def test_words_that_may_follow_and_commands(client: LanguageClient, tmp_path: Path) -> None:
    path = tmp_path / "p.ssp"
    path.write_text(PLAN, "utf-8")
    editor = Editor(client, path)
    editor.open(PLAN)
    editor.type(PLAN + "split model by ")
    lines = editor.text.split("\n")
    at_end = types.CompletionParams(editor.document, types.Position(len(lines) - 1, len(lines[-1])))
    words = await soon(lambda: client.text_document_completion_async(at_end), bool)
    assert {"heads", "batch", "ffn"} <= {w.label for w in words}
    editor.type(PLAN.replace("S)", "S )"))
    asked = types.DocumentFormattingParams(editor.document, types.FormattingOptions(4, True))
    (edit,) = await client.text_document_formatting_async(asked)
    assert edit.new_text == PLAN
    prove = types.ExecuteCommandParams("ssdsl.prove", [editor.uri])
    done = await client.workspace_execute_command_async(prove)
    assert done["status"] == 2 and "not saved" in done["text"]
    editor.type(PLAN)
    done = await client.workspace_execute_command_async(prove)
    assert done["status"] == 0 and "proved" in done["text"]


@pytest.mark.asyncio
async def test_no_file_runs_without_consent(client: LanguageClient, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("open('ran', 'w')\n", "utf-8")
    asked = []

    @client.feature(types.WINDOW_SHOW_MESSAGE_REQUEST)
    def answer(params: types.ShowMessageRequestParams) -> types.MessageActionItem:
        asked.append(params.message)
        return types.MessageActionItem("Not now")

    editor = Editor(client, tmp_path / "p.ssp")
    editor.open(PLAN.replace("gpt:tiny", "mine.py:net"))
    (said,) = await editor.until(bool)
    assert "was not run" in said.message and len(asked) == 1
    assert not (tmp_path / "ran").exists()
    editor.type(PLAN.replace("# for: --model gpt:tiny", "# for:"))
    (said,) = await editor.until(lambda found: bool(found) and "was not run" not in found[0].message)
    assert "# for: --model gpt:tiny" in said.message
