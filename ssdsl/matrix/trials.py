"""Tries plans on a model: each is proved, and trained with its ranks as threads if that is asked for."""

import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.analyse.work import device_share
from ssdsl.cluster.cluster import Cluster
from ssdsl.matrix.cell import Cell, CellOutcome, PlanText, Worst
from ssdsl.prove.failures import ProofFailed
from ssdsl.record import replace
from ssdsl.run.errors import CodesDiffer, PiecesDisagree, PiecesIncomplete
from ssdsl.text.diagnostic import PlanError
from ssdsl.workspace import Compiled, Workspace

if TYPE_CHECKING:
    from ssdsl.run.verify.compare import Comparison
    from ssdsl.run.verify.in_threads import VerifierInThreads

WRONG = ProofFailed, PiecesDisagree, PiecesIncomplete, CodesDiffer  # which are never the user's mistake


class Trials:
    """A model on which plans are tried, by the name that tables show.

    Without a `verifier` plans are proved only. Cells have a report with a cluster `on` which steps are simulated.
    """

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        verifier: "VerifierInThreads | None" = None,
        on: Cluster | None = None,
        state: StatePrecision = MIXED,
    ) -> None:
        self.name, self.workspace, self.verifier, self.on, self.state = name, workspace, verifier, on, state

    def cell(self, plan: PlanText, params: Mapping[str, int]) -> Cell:
        """What becomes of a plan. A mistake of ssdsl is a cell as well, so that the others are still tried."""
        start = time.perf_counter()
        cell = Cell(self.name, plan.name, params, CellOutcome.REFUSED)
        try:
            candidate = self.workspace.candidate(plan.source, params, plan.folder)
            compiled = self.workspace.proved(candidate)
            work, warnings = device_share(compiled.program), compiled.warnings
            cell = replace(cell, outcome=CellOutcome.PROVED, is_proved=True, work=work, warnings=warnings)
            cell = replace(cell, devices=compiled.plan.devices)
            if self.on is not None:
                cell = replace(cell, report=self.workspace.simulate(candidate, self.on, state=self.state))
            if self.verifier is not None:
                cell = _verified(self.verifier, cell, plan, compiled)
        except PlanError as error:
            first = error.diagnostics[0]
            outcome = CellOutcome.WRONG if isinstance(first, WRONG) else CellOutcome.REFUSED
            cell = replace(cell, outcome=outcome, reason=first)
        except Exception as error:
            self.workspace.clear()
            cell = replace(cell, outcome=CellOutcome.CRASHED, fault="".join(traceback.format_exception(error)))
        return replace(cell, seconds=time.perf_counter() - start)


def _verified(verifier: "VerifierInThreads", cell: Cell, plan: PlanText, compiled: Compiled) -> Cell:
    """The cell of a plan that is trained. Raises PlanError where training refuses it."""
    from ssdsl.run.in_process.run_in_process import RanksFailed
    from ssdsl.run.verify.verify import difference, nothing_compared

    try:
        found = verifier.verify(compiled, cell.params, plan.folder)
    except RanksFailed as failure:
        return replace(cell, outcome=CellOutcome.CRASHED, fault=f"{failure.kind}: {failure}")
    cell = replace(cell, worst=_worst(found))
    if (wrong := difference(found, verifier.graph)) is not None:
        return replace(cell, outcome=CellOutcome.WRONG, reason=wrong)
    if (nothing := nothing_compared(found, verifier.model, verifier.graph)) is not None:
        return replace(cell, outcome=CellOutcome.UNCOMPARED, reason=nothing)
    return replace(cell, outcome=CellOutcome.VERIFIED)


def _worst(found: "tuple[Comparison, ...]") -> Worst:
    from ssdsl.run.verify.compare import worst_of

    worst = worst_of(found)
    only_rounding = worst.is_rounding and not worst.differs
    return Worst(worst.what, worst.name, None if only_rounding else worst.relative, worst.share)
