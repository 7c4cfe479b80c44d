"""The programs that an engine runs: one for training, and on demand others of the same plan and model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ..data.batch_spec import Sizes
from ..errors import EngineError
from ..program.initial_state import InitialState
from ..program.program import CompiledProgram

Outputs = tuple[str, ...] | None  # names of evaluation outputs beside the loss; None: all that forward returns


@dataclass(frozen=True)
class Variant:
    """A program beside that of training: for training ("train") or evaluation ("evaluate"), on batches in which these
    axes of inputs have other sizes, with these outputs, or of one of several losses."""

    kind: Literal["train", "evaluate"]
    sizes: Sizes = ()
    outputs: Outputs = ()
    loss: str | None = None


class Programs(Protocol):
    """The source of an engine's programs. Called by all ranks alike."""

    @property
    def training(self) -> CompiledProgram:
        """The program of a training step."""
        ...

    @property
    def state(self) -> InitialState:
        """The initial values of its weights."""
        ...

    @property
    def plan(self) -> str:
        """The text of the plan."""
        ...

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the losses, if there are several."""
        ...

    def other(self, variant: Variant, described: str) -> CompiledProgram:
        """A program beside that of training; `described` are its sizes in words. Raises EngineError if there is no such
        program."""
        ...

    def replanned(self, plan: str, params: Mapping[str, int] | None) -> "Programs":
        """The programs of the same model under another plan. Raises EngineError if there are none."""
        ...


class _OfOnePlan:
    """Programs that were compiled before."""

    def replanned(self, plan: str, params: Mapping[str, int] | None) -> Programs:
        """Raises EngineError."""
        raise EngineError("a compiled program is of one plan", "use `ssdsl.engine(...)`, which compiles any")


class InFolder(_OfOnePlan):
    """The programs that `ssdsl compile` wrote."""

    losses = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.training = CompiledProgram.read(folder)
        self.plan = (folder / "plan.ssp").read_text()
        self.state, self.batches = self.training.weights, self.training.batches

    def other(self, variant: Variant, described: str) -> CompiledProgram:
        """A program in a subfolder."""
        folder = self.folder / variant.kind
        if variant.sizes:
            raise EngineError(
                "a compiled program is for batches of one size",
                "drop a smaller last batch (`drop_last=True`) and pad to one length, or use `ssdsl.engine(...)`, which "
                "compiles for other sizes",
            )
        if not (folder / "program.json").exists():
            raise EngineError(f"`{self.folder}` has no program for this ({variant.kind})", "compile it again")
        program = CompiledProgram.read(folder, self.folder)
        if variant.outputs is None and not program.table.returned:
            raise EngineError(
                f"the program in `{folder}` returns its loss alone",
                "compile it with the outputs that it is to return: `ssdsl compile ... --output logits`",
            )
        has = [output.name for output in program.table.outputs]
        held = [leaf for leaf in program.table.returned if leaf.is_tensor]
        if lacking := [name for name in variant.outputs or () if not any(leaf.is_in(name) for leaf in held)]:
            returned = ", ".join(["its loss", *has])
            raise EngineError(
                f"the program in `{folder}` does not return `{lacking[0]}` (it returns {returned})",
                "use `ssdsl.engine(...)`, which compiles for the outputs that are asked for",
            )
        return program


class InMemory(_OfOnePlan):
    """A program for training, and perhaps one for evaluation, in memory."""

    losses = ()

    def __init__(self, training: CompiledProgram, evaluation: CompiledProgram | None = None) -> None:
        self.training, self.evaluation, self.plan = training, evaluation, ""
        constants = evaluation.weights.tensors if evaluation is not None else {}
        self.state = InitialState(
            {**constants, **training.weights.tensors}, training.weights.recipes, training.weights.names
        )

    def other(self, variant: Variant, described: str) -> CompiledProgram:
        """The program for evaluation; raises EngineError for another."""
        if variant.kind == "train" or variant.sizes or self.evaluation is None:
            raise EngineError(f"there is no program for this ({variant.kind})")
        return self.evaluation
