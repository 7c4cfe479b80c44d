"""How long an editor waits for `ssdsl lsp` while a large plan is written.

    python -m bench editor [--model gpt:175b]

A client types into a plan and asks as an editor does. Printed are, for each kind of answer, the median and the longest
of so many keys, beside the bar: syntax and completion with each key, names and splits after the last one, the proof and
the simulated step behind it.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import LanguageClient
from rich.console import Console
from rich.table import Table

PLAN = """\
# for: --model {model} --cluster a100x1024 --set S=16 --set T=8 --set D=8 --set M=64 --set R=1

{text}
"""
BARS = {"syntax": 0.05, "completion": 0.05, "names and splits": 0.3, "lowering, proof and step": 3.0}
KEYS = 20


class Typist:
    """A client with one plan, which notes when the server last told of problems."""

    def __init__(self, client: LanguageClient, path: Path) -> None:
        self.client, self.uri, self.version = client, path.as_uri(), 0
        self.told: asyncio.Queue[list[types.Diagnostic]] = asyncio.Queue()
        client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self.told.put_nowait(params.diagnostics))

    def open(self, text: str) -> None:
        """Opens the plan."""
        document = types.TextDocumentItem(self.uri, "ssp", 0, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(document))

    def type(self, text: str) -> None:
        """The text is another one."""
        self.version += 1
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        changes = [types.TextDocumentContentChangeWholeDocument(text)]
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, changes))

    async def until(self, code: str) -> float:
        """Waits until a problem of this code is told; the time then."""
        while code not in {problem.code for problem in await self.told.get()}:
            pass
        return time.perf_counter()

    async def until_compiled(self) -> None:
        """Waits until the server has told what the compiler says: the second time that it tells of a right text."""
        for _ in range(2):
            while any(problem.severity == types.DiagnosticSeverity.Error for problem in await self.told.get()):
                pass

    async def hover(self, text: str, words: str) -> str:
        """What the server says of a place."""
        before = text[: text.index(words)]
        position = types.Position(before.count("\n"), len(before) - before.rfind("\n") - 1)
        params = types.HoverParams(types.TextDocumentIdentifier(self.uri), position)
        found = await self.client.text_document_hover_async(params)
        return getattr(found.contents, "value", "") if found is not None else ""


async def measured(model: str) -> dict[str, list[float]]:
    """Seconds of each answer, by its kind."""
    text = PLAN.format(model=model, text=Path("examples/megatron.ssp").read_text("utf-8"))
    found: dict[str, list[float]] = {name: [] for name in BARS}
    client = LanguageClient("bench", "1")
    await client.start_io(sys.executable, "-m", "ssdsl", "lsp")
    await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
    with tempfile.TemporaryDirectory() as folder:
        typist = Typist(client, Path(folder, "p.ssp"))
        typist.open(text)
        while "peak memory" not in await typist.hover(text, "split model by heads"):
            await asyncio.sleep(0.1)
        for key in range(KEYS):
            typist.type(text + "splt model" + " " * key)
            start = time.perf_counter()
            found["syntax"].append(await typist.until("E0110") - start)
            typist.type(text + "split model by ")
            start = time.perf_counter()
            at = types.Position(text.count("\n"), len("split model by "))
            asked = types.CompletionParams(types.TextDocumentIdentifier(typist.uri), at)
            assert await client.text_document_completion_async(asked)
            found["completion"].append(time.perf_counter() - start)
        for key in range(KEYS // 2):
            typist.type(text.replace("heads", "headz") + " " * key)
            start = time.perf_counter()
            found["names and splits"].append(await typist.until("E0204") - start)
        for key in range(KEYS // 4):
            typist.type(text.replace("S=16", f"S={(8, 16)[key % 2]}"))
            start = time.perf_counter()
            await typist.until_compiled()
            found["lowering, proof and step"].append(time.perf_counter() - start)
    await client.shutdown_async(None)
    client.exit(None)
    return found


def main(arguments: list[str]) -> int:
    """Prints the table; 1 if a median is above its bar."""
    parser = argparse.ArgumentParser(prog="python -m bench editor")
    parser.add_argument("--model", default="gpt:175b")
    model = parser.parse_args(arguments).model
    found = asyncio.run(measured(model))
    table = Table("what the editor waits for", "median", "longest", "bar", title=f"ssdsl lsp, {model} on 1,024 devices")
    for name, times in found.items():
        median = statistics.median(times)
        table.add_row(name, f"{1e3 * median:.0f} ms", f"{1e3 * max(times):.0f} ms", f"{1e3 * BARS[name]:.0f} ms")
    Console().print(table)
    return int(any(statistics.median(times) > BARS[name] for name, times in found.items()))
