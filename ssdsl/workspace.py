"""Compiles many plans for one model on one cluster: each compilation costs only what is new in its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.ir.program import Kernels, Program
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import After, Lowered, formed, lower, lowered_again, scheduled
from ssdsl.lower.stages import Planned
from ssdsl.lower.unread import unread
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import Reading, read_plan
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.plan.plan import Plan
from ssdsl.prove.prove import Proof, require_proof
from ssdsl.record import Record
from ssdsl.simulate.price.costs import Costs
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import Prices, SimulatedStep, prices, report, simulated
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source


class Compiled(Record):
    """A plan with its program, the proof of that and the warnings."""

    source: Source
    plan: Plan
    program: Program
    proof: Proof
    warnings: tuple[Diagnostic, ...]


class Candidate(Record):
    """A plan with a program that is not proved yet: its step can be simulated, nothing else (see
    `Workspace.proved`)."""

    reading: Reading
    lowered: Lowered

    @property
    def source(self) -> Source:
        """The plan's text."""
        return self.reading.script.span.source

    @property
    def plan(self) -> Plan:
        """The plan that the text describes."""
        return self.reading.plan


@dataclass(slots=True)
class Workspace:
    """A model, the cluster for whose links communication is chosen, if one is given, and how operators run.

    It remembers parts of the last plan, which makes the next one faster and changes no answer: a new workspace gives
    the same.
    """

    graph: Graph
    cluster: Cluster | None = None
    kernels: Kernels = Kernels.EAGER
    _model: ModelIndex | None = field(default=None, repr=False)
    _last: Lowered | None = field(default=None, repr=False)
    _proof: tuple[object, Proof] | None = field(default=None, repr=False)  # of the last that was proved
    _prices: Prices | None = field(default=None, repr=False)
    _step: tuple[object, SimulatedStep] | None = field(default=None, repr=False)  # at these prices

    @property
    def model(self) -> ModelIndex:
        """The index of the model's operators that plans are read with."""
        if self._model is None:
            self._model = index_model(self.graph)
        return self._model

    def clear(self) -> None:
        """Forgets all plans."""
        self._model = self._last = self._proof = self._prices = self._step = None

    @paused_collector()
    def candidate(
        self, source: Source, overrides: Mapping[str, int], folder: Path | None = None, after: After | None = None
    ) -> Candidate:
        """The program of a text, not proved; `use` statements look in `folder`. With `after` all passes run, and it is
        called after each with the pass's name and its result. Raises PlanError."""
        return self.formed(read_plan(parse(source), self.model, overrides, folder), after)

    @paused_collector()
    def formed(self, reading: Reading, after: After | None = None) -> Candidate:
        """The program of a text that has been read, not proved; `after` as in `candidate`. Raises PlanError."""
        return Candidate(reading, self._lowered(reading.plan, after))

    @paused_collector()
    def proved(self, candidate: Candidate) -> Compiled:
        """The plan with its proved program and all warnings. Raises PlanError with what could not be proved."""
        lowered, plan, source = candidate.lowered, candidate.plan, candidate.source
        if self._proof is None or self._proof[0] is not lowered.like:
            self._proof = lowered.like, self._proof_of(lowered)
        warnings = *candidate.reading.warnings(), *unread(plan, lowered.program, source)
        return Compiled(source, plan, lowered.program, self._proof[1], warnings)

    @paused_collector()
    def compile(
        self, source: Source, overrides: Mapping[str, int], folder: Path | None = None, after: After | None = None
    ) -> Compiled:
        """The proved program of a text; arguments are those of `candidate`. Raises PlanError."""
        return self.proved(self.candidate(source, overrides, folder, after))

    @paused_collector()
    def simulate(
        self, candidate: Candidate, cluster: Cluster, costs: Costs | None = None, state: StatePrecision = MIXED
    ) -> Report:
        """Simulates a step of a plan on a cluster, as `simulate.simulate` does. Raises PlanError."""
        lowered, program = candidate.lowered, candidate.lowered.program
        if self._prices is None or not self._prices.serve(program, cluster, state):
            self._prices, self._step = prices(program, cluster, state), None
        if costs is not None:
            return report(simulated(program, cluster, self._prices, costs), program, candidate.source)
        if self._step is None or self._step[0] is not lowered.like:
            self._step = lowered.like, simulated(program, cluster, self._prices)
        return report(self._step[1], program, candidate.source)

    def _lowered(self, plan: Plan, after: After | None) -> Lowered:
        found = None if self._last is None or after is not None else lowered_again(self._last, plan)
        if found is None:
            before = formed(Planned(plan, self.cluster, kernels=self.kernels), after)
            found = Lowered(plan, before, scheduled(before, after), object())
        self._last = found
        return found

    def _proof_of(self, lowered: Lowered) -> Proof:
        try:
            return require_proof(lowered.program)
        except PlanError:  # the places of its statements may be those of an earlier text
            return require_proof(lower(lowered.plan, self.cluster, kernels=self.kernels))
