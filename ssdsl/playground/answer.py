"""Answers the playground's page about a plan, as plain values for JSON: what is wrong, a simulated step, a proof.

The answer to one text comes in stages, the quickest first, so that a page shows a timeline before the proof is done,
and leaves the rest out when the text has changed meanwhile:

    request  {"text": ..., "name": "plan.ssp", "model": "gpt:13b", "cluster": "a100x64"}
    read     {"stage": "read", "model": ..., "cluster": ..., "params": [...], "diagnostics": [...]}
    step     {"stage": "step", "figures": ..., "memory": [...], "timeline": ..., "diagnostics": [...]}
    traffic  {"stage": "traffic", "communication": ...}
    proof    {"stage": "proof", "proof": "proved in ...", "diagnostics": [...]}

A stage with an error is the last one. Model and cluster of the request are those of a plan whose header names none.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.collector import paused_collector
from ssdsl.lang.errors.header import NotAnOption
from ssdsl.lang.header import Header, header_of
from ssdsl.lang.nodes import Script
from ssdsl.lang.parse import parse
from ssdsl.lang.recover import syntax_mistakes
from ssdsl.model.graph import Graph
from ssdsl.model.graph_errors import GraphUnreadable
from ssdsl.model.graph_file import BadGraphFile, read_graph
from ssdsl.plan.declarations import params
from ssdsl.plan.interpret import Reading, read_plan
from ssdsl.plan.model_index import ModelIndex
from ssdsl.playground.tables import figures, largest_first, memory, table
from ssdsl.record import Record
from ssdsl.show.advice.capacity import capacity
from ssdsl.show.advice.exposed import exposed_on
from ssdsl.show.charts.timeline_html import timeline_data
from ssdsl.show.tables.communication import communication_view
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import as_json
from ssdsl.text.source import Source, Span
from ssdsl.workspace import Workspace

Answer = dict[str, Any]
IS_NUMBER = re.compile(r"\s*\w+\s*=\s*-?\d+\s*")
LONGEST = 1 << 18  # characters of a plan
MOST_WORKSPACES = 4


class PlanRequest(Record):
    """A plan with the model and the cluster that it is for, as its header says or else the request."""

    source: Source
    overrides: Mapping[str, int]
    model: str
    cluster: str


@dataclass(slots=True)
class Playground:
    """The graphs that a page has loaded, by the name of their model, and the last workspaces."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    workspaces: dict[tuple[str, str], Workspace] = field(default_factory=dict)

    def add_graph(self, model: str, path: Path) -> Answer:
        """Reads the graph of a model from a file. The answer has what `is_read`, or why it is not."""
        try:
            graph, header = read_graph(path)
        except (BadGraphFile, OSError) as error:
            return {
                "stage": "graph",
                "model": model,
                "diagnostics": [shown(GraphUnreadable(None, model, str(error)))],
            }
        self.graphs[model] = graph
        self.workspaces = {key: kept for key, kept in self.workspaces.items() if key[0] != model}
        origin, count = header.get("model", graph.name), len(graph.operators)
        return {"stage": "graph", "model": model, "origin": origin, "operators": count, "diagnostics": []}

    def answers(self, request: Mapping[str, Any]) -> Iterator[Answer]:
        """The stages of an answer. Whatever a plan does to the compiler is an answer too, and raises nothing."""
        stage = "read"
        try:
            for answer in self._stages(request):
                stage = answer["stage"]
                yield answer
        except PlanError as error:
            yield {"stage": "mistakes", "after": stage, "diagnostics": [*map(shown, error.diagnostics)]}
        except Exception as error:
            yield {"stage": "bug", "after": stage, "bug": f"{type(error).__name__}: {error}", "diagnostics": []}

    def _stages(self, request: Mapping[str, Any]) -> Iterator[Answer]:
        asked = asked_of(request)
        about: Answer = {"stage": "read", "model": asked.model, "cluster": asked.cluster}
        if asked.model not in self.graphs:
            yield about | {"wants": asked.model, "diagnostics": []}
            return
        script = parsed(asked.source)
        overrides = asked.overrides
        about["params"] = [{"name": p.name, "value": p.default, "help": p.help} for p in params(script, overrides)]
        yield about | {"diagnostics": []}
        cluster = load_cluster(asked.cluster)
        workspace = self._workspace(asked.model, cluster)
        candidate = workspace.formed(read(script, workspace.model, overrides))
        report = workspace.simulate(candidate, cluster)
        program = candidate.lowered.program
        full = capacity(program, asked.source, report)
        yield {
            "stage": "step",
            "figures": figures(report),
            "memory": memory(report),
            "timeline": timeline_data(report.timeline),
            "diagnostics": [*map(shown, full)],
        }
        with paused_collector():
            view = communication_view(program, exposed=exposed_on(program, cluster, report))
        yield {"stage": "traffic", "communication": table(largest_first(view)), "diagnostics": []}
        compiled = workspace.proved(candidate)
        yield {"stage": "proof", "proof": str(compiled.proof), "diagnostics": [*map(shown, compiled.warnings)]}

    def _workspace(self, model: str, cluster: Cluster) -> Workspace:
        """The workspace of a model on a cluster; those of the last few are kept."""
        key = model, cluster.name
        found = self.workspaces.pop(key, None) or Workspace(self.graphs[model], cluster)
        self.workspaces[key] = found
        while len(self.workspaces) > MOST_WORKSPACES:
            del self.workspaces[next(iter(self.workspaces))]
        return found


def asked_of(request: Mapping[str, Any]) -> PlanRequest:
    """The plan of a request. Raises PlanError with all mistakes of syntax, if its header is among them."""
    source = Source(str(request.get("name") or "plan.ssp"), str(request["text"])[:LONGEST])
    try:
        header = header_of(source)
    except PlanError as error:
        raise PlanError(*(syntax_mistakes(source) or error.diagnostics)) from None
    model, cluster = header.given("--model"), header.given("--cluster")
    return PlanRequest(
        source, numbers_of(header, source), model or str(request["model"]), cluster or str(request["cluster"])
    )


def numbers_of(header: Header, source: Source) -> Mapping[str, int]:
    """The params that a header sets. Raises PlanError for what is no number: commands say so before they read it."""
    try:
        return header.numbers
    except ValueError:
        wrong = next(v for option, v in header.options if option == "--set" and not IS_NUMBER.fullmatch(v))
        start = max(source.text.find(wrong), 0)
        raise PlanError(NotAnOption(Span(source, start, start + len(wrong)), f"--set {wrong}")) from None


def parsed(source: Source) -> Script:
    """The script of a plan. Raises PlanError with all mistakes of its syntax."""
    if mistakes := syntax_mistakes(source):
        raise PlanError(*mistakes)
    return parse(source)


def read(script: Script, model: ModelIndex, overrides: Mapping[str, int]) -> Reading:
    """What a plan says of a model. Raises PlanError with all mistakes of its names.

    The page's one question to `ssdsl.plan`: what finds more mistakes at once takes its place.
    """
    return read_plan(script, model, overrides)


def shown(diagnostic: Diagnostic) -> Answer:
    """A diagnostic as commands print it with `--json`, and the text of `ssdsl explain`."""
    paragraphs = (inspect.getdoc(type(diagnostic)) or "").split("\n\n")
    return as_json(diagnostic) | {"explanation": "\n\n".join(" ".join(p.split("\n")) for p in paragraphs)}
