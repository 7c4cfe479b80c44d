"""The helper process of a model, from the server's side: one request at a time, and the last one counts."""

import asyncio
import json
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdsl.model.graph import Graph
from ssdsl.model.graph_file import read_graph

Answer = dict[str, Any]
LONGEST = 1 << 26  # bytes of an answer


class NotOpened(Exception):
    """The model could not be captured: with `diagnostics`, as JSON, or with what the process said at its end."""

    def __init__(self, diagnostics: list[Answer], why: str = "") -> None:
        super().__init__(why)
        self.diagnostics = diagnostics


@dataclass
class Helper:
    """A process that has captured a model, and its graph."""

    process: asyncio.subprocess.Process
    graph: Graph
    asked: int = 0
    _waiting: dict[int, "asyncio.Future[Answer]"] = field(default_factory=dict)
    _reader: "asyncio.Task[None] | None" = None

    @classmethod
    async def start(cls, model: str, folder: Path) -> "Helper":
        """Captures a model in a process of its own, whose files are looked for in `folder`. Raises NotOpened."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "ssdsl.lsp.helper"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=folder,
            limit=LONGEST,
        )
        said = asyncio.create_task(_drained(process.stderr))  # which ends with the process
        assert process.stdin is not None and process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="ssdsl-lsp-") as made:
            path = Path(made, "model.graph")
            try:
                await _send(process, {"model": model, "graph": str(path)})
                answer = await _answer(process.stdout)
                if answer is None:
                    said_last = (await said).strip().rpartition("\n")[2]
                    raise NotOpened([], said_last or "the process that captured it ended without a word")
                if "graph" not in answer:
                    raise NotOpened(answer["diagnostics"])
                graph = await asyncio.to_thread(lambda: read_graph(path)[0])
            except BaseException:
                await _end(process)
                raise
        found = cls(process, graph)
        found._reader = asyncio.create_task(found._read())
        return found

    async def compile(self, **request: Any) -> Answer | None:
        """What the compiler says of a plan; None if a later request has taken its place, or the process ended."""
        self.asked += 1
        number = self.asked
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting = {number: future}
        try:
            await _send(self.process, {"compile": number, **request})
            return await future
        except (OSError, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None

    async def stop(self) -> None:
        """Ends what is being compiled."""
        with suppress(OSError):
            await _send(self.process, {"stop": True})

    async def end(self) -> None:
        """Ends the process."""
        if self._reader is not None:
            self._reader.cancel()
        await self.stop()
        await _end(self.process)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while (answer := await _answer(self.process.stdout)) is not None:
            future = self._waiting.pop(answer.get("compile", 0), None)
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._waiting.values():
            future.cancel()


async def _send(process: asyncio.subprocess.Process, request: Answer) -> None:
    assert process.stdin is not None
    process.stdin.write((json.dumps(request) + "\n").encode())
    await process.stdin.drain()


async def _answer(stdout: asyncio.StreamReader) -> Answer | None:
    """The next whole answer; None if there is none any more."""
    while line := await stdout.readline():
        with suppress(ValueError):  # what a process that was ended had begun to write
            found: Answer = json.loads(line)
            return found
    return None


async def _drained(stderr: asyncio.StreamReader | None) -> str:
    """The end of what a process says, which is read so that it never waits for a reader."""
    kept = b""
    while stderr is not None and (some := await stderr.read(1 << 16)):
        kept = (kept + some)[-(1 << 12) :]
    return kept.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
