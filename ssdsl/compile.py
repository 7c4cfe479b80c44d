"""The compiler from end to end: a plan's file and a model's graph become a plan and its program."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ssdsl.cluster.link import LOOPBACK, Link
from ssdsl.ir.program import Program
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lower.lower import After, lower
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan
from ssdsl.prove.prove import Proof, require_proof
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan with what follows from it."""

    source: Source
    plan: Plan
    program: Program
    proof: Proof
    warnings: tuple[Diagnostic, ...]


def make_plan(
    source: Source, graph: Graph, overrides: Mapping[str, int], folder: Path | None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """What a text says about this model, with warnings; raises PlanError. `use` statements look in `folder`."""
    return interpret_all(parse(source), graph, overrides, folder)


def compile_plan(path: Path, graph: Graph, overrides: Mapping[str, int], link: Link = LOOPBACK) -> Compiled:
    """The plan of a file and its program; raises PlanError."""
    return compile_source(read_source(path), graph, overrides, path.parent, link)


def compile_source(
    source: Source,
    graph: Graph,
    overrides: Mapping[str, int],
    folder: Path | None,
    link: Link = LOOPBACK,
    after: After | None = None,
) -> Compiled:
    """As `compile_plan`, of a text; `after` is called behind each pass, with its name and what there is.

    What is not proved is not handed out: raises PlanError with what failed.
    """
    plan, warnings = make_plan(source, graph, overrides, folder)
    program = lower(plan, link, after)
    return Compiled(source, plan, program, require_proof(program), warnings)
