"""Trains a compiled plan with its ranks as threads of this process, and compares it with a single device.

It takes the time of the computation alone: no process starts, no folder is written. What the single device computes is
kept for the next plan of the same model.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from ssdsl.compile import compile_lossless
from ssdsl.ir.program import Kernels, Program
from ssdsl.model.alter.altered import Altered
from ssdsl.model.alter.run_graph import trained_model
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.run.failures import stopped
from ssdsl.run.in_process.run_in_process import RanksFailed, one_thread, program_of, run_in_process, run_with_noise
from ssdsl.run.verify.codes import check_codes
from ssdsl.run.verify.compare import Comparison
from ssdsl.run.verify.error_growth import EXACT, SingleDevice
from ssdsl.run.verify.verify import compare_with, difference, trained_by, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled

MISTAKE = re.compile(r"^ssdsl\.runtime\.errors\.EngineError: (.*(?:\n  help: .*)*)", re.MULTILINE)


class VerifierInThreads:
    """A model that trains under several plans, and on a single device once for all of them.

    `kernels` are those of the plans' operators; the single device is eager.
    """

    def __init__(self, model: Model, graph: Graph, training: Training, kernels: Kernels = Kernels.EAGER) -> None:
        self.model, self.graph, self.training, self.kernels = model, graph, training, kernels
        self._device: SingleDevice | None = None

    def verify(
        self, compiled: Compiled, overrides: Mapping[str, int], folder: Path | None = None
    ) -> tuple[Comparison, ...]:
        """Every loss, gradient, weight and buffer of a plan beside the single device's. For a plan that compresses,
        these are followed by those of compressions that keep all numbers.

        Raises PlanError where training refuses the plan, where copies disagree and where a code differs; RanksFailed
        where the program is wrong: a crash, a deadlock, messages that do not fit.
        """
        program, altered = compiled.program, compiled.plan.altered
        found = self.compared(program, altered)
        if altered is None or not altered.compressed or difference(found) is not None:
            return found
        return *found, *self.lossless(compiled.source, program, altered, overrides, folder)

    def lossless(
        self, source: Source, program: Program, altered: Altered, overrides: Mapping[str, int], folder: Path | None
    ) -> tuple[Comparison, ...]:
        """The same for a plan that compresses, with compressions that keep all numbers. Raises PlanError also where a
        part of what compresses makes other codes of the single device's numbers than that."""
        check_codes(self.model, altered.graph, program, self.training.seed)
        whole = compile_lossless(source, self.graph, overrides, folder, kernels=self.kernels)
        return self.compared(whole.program, altered.without_compression(self.graph))

    def compared(self, program: Program, changes: Altered | None) -> tuple[Comparison, ...]:
        """A program beside a single device that trains the model with these changes; raises as `verify` does."""
        if self.kernels is Kernels.COMPILED:
            torch._dynamo.reset()  # it skips frames of a file that ran in a dispatch mode, in float64
        with one_thread():
            return self._compared(program, changes)

    def _compared(self, program: Program, changes: Altered | None) -> tuple[Comparison, ...]:
        written, training = program_of(program, self.model), self.training
        try:
            finished = run_in_process(written, training)
        except RanksFailed as failure:
            if (mistake := MISTAKE.search(str(failure))) is not None:
                raise PlanError(stopped(mistake[1])) from failure
            raise
        again, noisy = partial(run_in_process, written, training, EXACT), partial(run_with_noise, written, training)
        if changes is not None or training.optimizer == "adamw":  # it trains another model, or follows the plan
            alone = trained_model(self.model, changes)
            return verify_dumps(alone, training, finished.losses, finished.dumps, again, noisy, self.kernels)
        if self._device is None:
            self._device = SingleDevice(self.model, training, None, self.kernels)
        plan, spreads = trained_by(self._device.model, training.steps, finished.losses, finished.dumps)
        return compare_with(self._device, plan, spreads, again, noisy)
