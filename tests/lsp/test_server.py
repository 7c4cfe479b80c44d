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
async def test_a_plan_is_written(client: LanguageClient, tmp_path: Path) -> None:
    path = tmp_path / "p.ssp"
    path.write_text(PLAN, "utf-8")
    editor = Editor(client, path)
    editor.open(PLAN.replace("heads", "headz").replace("assign", "asign"))
    found = await editor.until(lambda found: len(found) == 2)
    assert {d.code for d in found} == {"E0110", "E0204"}
    wrong = next(d for d in found if d.code == "E0204")
    context = types.CodeActionContext([wrong])
    actions = await client.text_document_code_action_async(types.CodeActionParams(editor.document, wrong.range, context))
    assert "write `heads`" in [a.title for a in actions] and "make all changes that helps name" in [a.title for a in actions]
    edit = actions[0].edit.changes[editor.uri][0]
    assert (edit.new_text, edit.range) == ("heads", wrong.range)

    editor.type(PLAN)
    await editor.until(lambda found: not found)
    hover = await client.text_document_hover_async(types.HoverParams(**editor.at("heads")))
    assert "4 in 56 operators" in hover.contents.value
    everywhere = types.Range(types.Position(0, 0), types.Position(20, 0))
    asked = types.InlayHintParams(editor.document, everywhere)
    hints = await soon(lambda: client.text_document_inlay_hint_async(asked), bool)
    assert "142 operators, parts of 2 (8)" in [h.label for h in hints]
    at_split = types.HoverParams(**editor.at("split model by heads"))
    hover = await soon(  # the compiler's word on a line comes later
        lambda: client.text_document_hover_async(at_split), lambda hover: "peak memory" in hover.contents.value
    )
    assert "all_reduce" in hover.contents.value and "split 56 operators by heads into 2 parts, tp, over gpus" in hover.contents.value

    there = await client.text_document_definition_async(types.DefinitionParams(**editor.at("gpus[pp")))
    assert there.range.start.line == PLAN[: PLAN.index("mesh")].count("\n")
    there = await client.text_document_definition_async(types.DefinitionParams(**editor.at("one_f_one_b(")))
    assert there.uri.endswith("stdlib/pipeline.ssp")
    places = await client.text_document_references_async(types.ReferenceParams(**editor.at("S = 2"), context=types.ReferenceContext(True)))
    assert len(places) == 4
    renamed = await client.text_document_rename_async(types.RenameParams(**editor.at("stage ="), new_name="piece"))
    assert len(renamed.changes[editor.uri]) == 3
    names = await client.text_document_document_symbol_async(types.DocumentSymbolParams(editor.document))
    assert [n.name for n in names] == ["one_f_one_b", "T", "S", "M", "gpus", "stage"]
    tokens = await client.text_document_semantic_tokens_full_async(types.SemanticTokensParams(editor.document))
    assert len(tokens.data) % 5 == 0 and len(tokens.data) > 200

    editor.type(PLAN + "split model by ")
    words = await client.text_document_completion_async(types.CompletionParams(**editor.at("model by ", behind=False)))
    assert isinstance(words, list)
    words = await client.text_document_completion_async(types.CompletionParams(**_end(editor)))
    assert {"heads", "batch", "ffn"} <= {w.label for w in words}
    editor.type(PLAN.replace("S)", "S )"))
    (edit,) = await client.text_document_formatting_async(types.DocumentFormattingParams(editor.document, types.FormattingOptions(4, True)))
    assert edit.new_text == PLAN
    done = await client.workspace_execute_command_async(types.ExecuteCommandParams("ssdsl.prove", [editor.uri]))
    assert done["status"] == 2 and "not saved" in done["text"]
    editor.type(PLAN)
    done = await client.workspace_execute_command_async(types.ExecuteCommandParams("ssdsl.prove", [editor.uri]))
    assert done["status"] == 0 and "proved" in done["text"]


def _end(editor: Editor) -> dict[str, Any]:
    lines = editor.text.split("\n")
    return {"text_document": editor.document, "position": types.Position(len(lines) - 1, len(lines[-1]))}
