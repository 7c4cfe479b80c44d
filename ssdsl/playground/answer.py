"""Answers the playground's page about a plan, as plain values for JSON: what is wrong, a simulated step, a proof.

The answer to one text comes in stages, the quickest first, so that a page shows a timeline before the proof is done,
and leaves the rest out when the text has changed meanwhile:

    request  {"text": ..., "name": "plan.ssp", "model": "gpt:13b", "cluster": "a100x64"}
    read     {"stage": "read", "model": ..., "cluster": ..., "params": [...], "diagnostics": []}
    step     {"stage": "step", "figures": ..., "memory": [...], "timeline": ..., "diagnostics": [...]}
    traffic  {"stage": "traffic", "communication": ..., "diagnostics": []}
    proof    {"stage": "proof", "proof": "proved in ...", "diagnostics": [...]}
    advice   {"stage": "advice", "diagnostics": [...]}

Instead of any stage the last one may come: "mistakes" with their diagnostics, or "bug" with an exception of ours. After
"read" that is all if its "wants" names a model whose graph nobody has added. Model and cluster of the request are those
of a plan whose header names none.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.collector import paused_collector
from ssdsl.lang.errors.files import FileTooLarge
from ssdsl.lang.header import header_of
from ssdsl.lang.nodes import Script
from ssdsl.lang.read import LARGEST_BYTES
from ssdsl.lang.recover import recovered
from ssdsl.model.graph import Graph
from ssdsl.model.graph_errors import GraphUnreadable
from ssdsl.model.graph_file import BadGraphFile, read_graph
from ssdsl.plan.declarations import params
from ssdsl.plan.interpret import read_plan, read_recovered
from ssdsl.playground.tables import communication, figures, memory
from ssdsl.record import Record
from ssdsl.show.advice.across_nodes import across_nodes
from ssdsl.show.advice.capacity import capacity
from ssdsl.show.advice.exposed import exposed_on
from ssdsl.show.advice.vain_recompute import vain_recompute
from ssdsl.show.charts.timeline_html import timeline_data
from ssdsl.show.tables.check import repeated_warnings
from ssdsl.show.tables.communication import communication_view
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import as_json
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace

Answer = dict[str, Any]
MOST_WORKSPACES = 4


class PageRequest(Record):
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
        """Reads the graph of a model from a file. The answer has a diagnostic if that cannot be."""
        try:
            graph, header = read_graph(path)
        except (BadGraphFile, OSError) as error:
            return _stage("graph", [GraphUnreadable(None, model, str(error))], model=model)
        self.graphs[model] = graph
        self.workspaces = {key: kept for key, kept in self.workspaces.items() if key[0] != model}
        return _stage("graph", model=model, origin=header.get("model", graph.name), operators=len(graph.operators))

    def answers(self, request: Mapping[str, Any]) -> Iterator[Answer]:
        """The stages of an answer. Whatever a plan does to the compiler is an answer too, and raises nothing."""
        try:
            yield from self._stages(request)
        except PlanError as error:
            yield _stage("mistakes", error.diagnostics)
        except Exception as error:
            yield _stage("bug", bug=f"{type(error).__name__}: {error}")

    def _stages(self, request: Mapping[str, Any]) -> Iterator[Answer]:
        plan = page_request(request)
        found = recovered(plan.source)
        wants: Answer = {} if plan.model in self.graphs else {"wants": plan.model}
        yield _stage(
            "read", model=plan.model, cluster=plan.cluster, params=params_json(found.script, plan.overrides), **wants
        )
        if wants:
            if found.mistakes:
                raise PlanError(*found.mistakes)
            return
        cluster = load_cluster(plan.cluster)
        workspace = self._workspace(plan.model, cluster)
        if found.mistakes:
            raise PlanError(*read_recovered(found, workspace.model, plan.overrides)[1])
        candidate = workspace.formed(read_plan(found.script, workspace.model, plan.overrides))
        report, program = workspace.simulate(candidate, cluster), candidate.lowered.program
        step = {"figures": figures(report), "memory": memory(report), "timeline": timeline_data(report.timeline)}
        yield _stage("step", capacity(program, plan.source, report), **step)
        with paused_collector():
            traffic = communication_view(program, exposed=exposed_on(program, cluster, report))
        yield _stage("traffic", communication=communication(traffic))
        compiled = workspace.proved(candidate)
        yield _stage("proof", compiled.warnings, proof=str(compiled.proof))
        in_vain = vain_recompute(program, plan.source, cluster)
        yield _stage("advice", (*repeated_warnings(program), *across_nodes(program, cluster), *in_vain))

    def _workspace(self, model: str, cluster: Cluster) -> Workspace:
        """The workspace of a model on a cluster; those of the last few are kept."""
        key = model, cluster.name
        found = self.workspaces.pop(key, None) or Workspace(self.graphs[model], cluster)
        self.workspaces[key] = found
        while len(self.workspaces) > MOST_WORKSPACES:
            del self.workspaces[next(iter(self.workspaces))]
        return found


def _stage(name: str, diagnostics: Iterable[Diagnostic] = (), **more: Any) -> Answer:
    return {"stage": name, **more, "diagnostics": [*map(diagnostic_json, diagnostics)]}


def page_request(request: Mapping[str, Any]) -> PageRequest:
    """The plan of a request. Raises PlanError with all mistakes of syntax, if its header is among them."""
    source = Source(str(request.get("name") or "plan.ssp"), str(request["text"]))
    if len(source.text) > LARGEST_BYTES:
        raise PlanError(FileTooLarge(None, source.name, LARGEST_BYTES // 1024))
    try:
        header = header_of(source)
    except PlanError as error:
        raise PlanError(*(recovered(source).mistakes or error.diagnostics)) from None
    model, cluster = header.given("--model"), header.given("--cluster")
    return PageRequest(source, header.numbers, model or str(request["model"]), cluster or str(request["cluster"]))


def params_json(script: Script, overrides: Mapping[str, int]) -> list[Answer]:
    """The params of a plan, with their values under the overrides. Raises PlanError for a default that is no number."""
    return [{"name": p.name, "value": p.default, "help": p.help} for p in params(script, overrides)]


def diagnostic_json(diagnostic: Diagnostic) -> Answer:
    """A diagnostic as commands print it with `--json`, and the text of `ssdsl explain`."""
    paragraphs = (inspect.getdoc(type(diagnostic)) or "").split("\n\n")
    return as_json(diagnostic) | {"explanation": "\n\n".join(" ".join(p.split("\n")) for p in paragraphs)}
