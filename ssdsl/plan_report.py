"""`ssdsl.compile_plan`: compiles a plan as commands do, and returns what scripts and notebooks show and simulate."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.program import Program
from ssdsl.kernel_choice import kernel_choice
from ssdsl.lang.header import header_of
from ssdsl.lang.read import read_source
from ssdsl.lang.recover import recovered
from ssdsl.lang.shipped import plan_path
from ssdsl.plan.interpret import read_recovered
from ssdsl.plan.model_index import index_model
from ssdsl.plan.plan import Plan
from ssdsl.record import Record
from ssdsl.search_report import graph_of
from ssdsl.show.cell import cell_of, text_of
from ssdsl.show.charts.timeline_html import timeline_html
from ssdsl.show.tables.check import check_views
from ssdsl.show.tables.report import report_views
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model


class CompiledPlan(Record):
    """A compiled plan, whose program is proved. `print` and a notebook's cell show the tables of `ssdsl check`."""

    compiled: Compiled

    @property
    def plan(self) -> Plan:
        """All facts of the text about the model: `devices`, `params`, `operators` and `graph`."""
        return self.compiled.plan

    @property
    def program(self) -> Program:
        """What each role runs."""
        return self.compiled.program

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What its author may not have meant."""
        return self.compiled.warnings

    def simulate(self, cluster: str = "laptop") -> "SimulatedPlan":
        """A simulated step on a cluster, a name or a file. Raises PlanError for an unknown one, or one that is too
        small."""
        return SimulatedPlan(simulate(self.program, self.compiled.source, load_cluster(cluster)))

    def __str__(self) -> str:
        said = "".join(f"{render(warning)}\n\n" for warning in self.warnings)
        return said + text_of(check_views(self.compiled))

    __repr__ = __str__  # a notebook shows it, in plain text

    def _repr_html_(self) -> str:
        return cell_of(str(self))


class SimulatedPlan(Record):
    """A simulated step. `report.step_s` is its time in seconds, `report.devices` has the memory of each role. `print`
    and a notebook's cell show the tables of `ssdsl simulate`, a cell its timeline, too."""

    report: Report

    def __str__(self) -> str:
        return text_of(report_views(self.report))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return cell_of(str(self), timeline_html(self.report.timeline))


def compile_plan(
    plan: str | os.PathLike[str],
    model: "str | Model | None" = None,
    *,
    params: Mapping[str, int] | None = None,
    cluster: str | None = None,
    kernels: str = "eager",
    meta: bool = False,
) -> CompiledPlan:
    """Compiles a plan for a model, and proves its program.

    - `plan`: a file, or the name of a plan that comes with ssdsl.
    - `model`: as in `--model`, or from `ssdsl.model_of`; without it, the model that the plan's header names. With
      `meta` a large one is made without its numbers.
    - `params`: sets params.
    - `cluster`: the one for whose links communication is chosen, a name or a file.
    - `kernels`: how operators run, as `--kernels` says.

    Raises PlanError for mistakes in plan, model or cluster, ValueError for a plan whose model is not known.
    """
    path = Path(plan_path(os.fspath(plan)))
    return compiled_text(read_source(path), path.parent, model, params, cluster, kernels, meta)


def compiled_text(
    source: Source,
    folder: Path | None,
    model: "str | Model | None" = None,
    params: Mapping[str, int] | None = None,
    cluster: str | None = None,
    kernels: str = "eager",
    meta: bool = False,
) -> CompiledPlan:
    """The plan of a text, as of a file in this folder; the rest as in `compile_plan`."""
    header = header_of(source)
    given = header.given("--model") if model is None else model
    if given is None:
        raise ValueError(f"no model: give one, or name it on top of {source.name}: `# for: --model NAME`")
    if model is None and isinstance(given, str) and ".py" in given:
        raise ValueError(f"{source.name} asks for the model of a file, which would run: give it, model={given!r}")
    numbers = header.numbers | dict(params or {})
    on, graph = None if cluster is None else load_cluster(cluster), graph_of(given, meta)
    how, found = kernel_choice(kernels).kernels, recovered(source)
    if found.mistakes:
        raise PlanError(*read_recovered(found, index_model(graph), numbers, folder)[1])
    return CompiledPlan(compile_source(source, graph, numbers, folder, on, kernels=how))
