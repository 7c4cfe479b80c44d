"""The process beside the server that captures a model, and compiles, simulates and proves plans for it.

    python -m ssdsl.lsp.helper

Requests and answers are lines of JSON on stdin and stdout:

    {"model": "gpt:tiny", "graph": FILE}                 captures, and writes the graph to FILE
    -> {"graph": true}, or {"diagnostics": [...]}
    {"compile": 7, "name": ..., "text": ..., "folder": ..., "params": {...}, "cluster": "a100x64"}
    -> {"compile": 7, "diagnostics": [...], "costs": {"14": [...]}}, or with `diagnostics` alone
    {"stop": true}                                       ends what is being compiled

Each plan is compiled in a fork, which finds the model's index in its memory, and which the next key ends.
"""

import json
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.model.graph_errors import GraphNotData
from ssdsl.model.graph_file import NotData, write_graph
from ssdsl.show.advice.by_line import by_line_view
from ssdsl.show.advice.capacity import capacity
from ssdsl.show.advice.exposed import exposed_rows
from ssdsl.show.view import seconds, size
from ssdsl.simulate.report import Report
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import as_json
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled, Workspace

Answer = dict[str, Any]
MOST = 4  # rows of communication of a line
LINE = re.compile(r"\A[^:]+:(\d+):")


def main() -> None:
    """Answers requests until the server ends."""
    out = os.dup(sys.stdout.fileno())  # models may print
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    workspace: Workspace | None = None
    child = 0
    requests = SimpleQueue[str]()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        if child:
            child = _ended(child)
        if "model" in request:
            answer, workspace = _opened(request)
            _write(out, answer)
        elif "compile" in request and workspace is not None:
            child = _forked(out, workspace, request)


def _listen(requests: SimpleQueue[str]) -> None:
    """Hands requests over. When stdin ends, so does the process, whatever it is at: the server has gone."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _opened(request: Answer) -> tuple[Answer, Workspace | None]:
    """Captures a model, or finds its graph in the cache."""
    spec = request["model"]
    try:
        found = captured(ModelRequest(spec))
        try:
            data = write_graph(found.graph, {"model": spec})
        except NotData as error:
            raise PlanError(GraphNotData(None, spec, str(error))) from error
    except PlanError as error:
        return {"diagnostics": [*map(as_json, error.diagnostics)]}, None
    Path(request["graph"]).write_bytes(data)
    workspace = Workspace(found.graph)
    assert workspace.model.graph is found.graph  # made now: each fork has it
    return {"graph": True}, workspace


def _forked(out: int, workspace: Workspace, request: Answer) -> int:
    """Compiles in a process of its own; in this one where the system has no forks. Returns its number, or 0."""
    if not hasattr(os, "fork"):
        _write(out, compiled(workspace, request))
        return 0
    if child := os.fork():
        return child
    code = 1
    try:
        _write(out, compiled(workspace, request))
        code = 0
    finally:
        os._exit(code)


def _ended(child: int) -> int:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return 0


def _write(out: int, answer: Answer) -> None:
    """Writes a line; behind what a process that was ended has begun to write."""
    data = ("\n" + json.dumps(answer) + "\n").encode()
    while data:
        data = data[os.write(out, data) :]


def compiled(workspace: Workspace, request: Answer) -> Answer:
    """What the compiler says of a plan that can be read."""
    about = {"compile": request["compile"]}
    source = Source(request["name"], request["text"])
    try:
        cluster = load_cluster(request["cluster"])
        workspace.cluster = None if request["cluster"] == "laptop" else cluster
        candidate = workspace.candidate(source, request["params"], Path(request["folder"]))
        report = workspace.simulate(candidate, cluster)
        result = workspace.proved(candidate)
    except PlanError as error:
        return {**about, "diagnostics": [*map(as_json, error.diagnostics)]}
    said = (*result.warnings, *capacity(result.program, source, report))
    return {
        **about,
        "diagnostics": [*map(as_json, said)],
        "costs": costs_by_line(result, cluster, report),
    }


def costs_by_line(result: Compiled, cluster: Cluster, report: Report) -> dict[str, list[str]]:
    """What a simulated step says of each line of the plan: memory, waits, communication."""
    found: dict[str, list[str]] = {}
    view = by_line_view(result.program, cluster, report)
    for row in (dict(zip((column.json_key for column in view.columns), cells, strict=True)) for cells in view.rows):
        if line := LINE.match(str(row["statement"])):
            memory = f"{size(float(row['peak_bytes'] or 0))} of the peak memory ({float(row['peak_share'] or 0):.0%})"
            waits = f"waits {seconds(float(row['waits_s'] or 0))} ({float(row['step_share'] or 0):.1%} of the step)"
            found.setdefault(line[1], []).append(f"{memory}; {waits}")
    for exposed in exposed_rows(result.program, cluster, report):
        name = exposed.name
        if (line := LINE.match(name.statement)) and len(found.setdefault(line[1], [])) <= MOST:
            found[line[1]].append(f"{name.kind}, {name.when}, of {name.of}: waits {seconds(exposed.time_s)}")
    return found


if __name__ == "__main__":
    main()
