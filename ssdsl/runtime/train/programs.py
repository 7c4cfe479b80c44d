"""The programs that an engine runs: one for training, and on demand others of the same plan and model."""

from pathlib import Path
from typing import Protocol

from ..errors import EngineError
from ..program import Program
from ..state import State
from .batch import Sizes


class Programs(Protocol):
    """Where programs come from. Called by all ranks alike."""

    @property
    def training(self) -> Program:
        """The program of a training step."""
        ...

    @property
    def state(self) -> State:
        """What its weights start from."""
        ...

    def other(self, kind: str, sizes: Sizes | None, outputs: tuple[str, ...]) -> Program:
        """A program for training ("train") or evaluation ("evaluate") on batches of other sizes, None for the same.

        `outputs` are the names of what evaluation returns beside the loss. Raises EngineError where there is none.
        """
        ...


class InFolder:
    """The programs that `ssdsl compile` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.training = Program.read(folder)
        self.state, self.batches = self.training.weights, self.training.batches

    def other(self, kind: str, sizes: Sizes | None, outputs: tuple[str, ...]) -> Program:
        """A program in a folder inside."""
        folder = self.folder / kind
        if sizes is not None:
            raise EngineError(
                "a compiled program is for batches of one size",
                "drop the last batch (`drop_last=True`), or use `ssdsl.engine(...)`, which compiles for another size",
            )
        if not (folder / "program.json").exists():
            raise EngineError(f"`{self.folder}` has no program for this ({kind})", "compile it again")
        return Program.read(folder)


class InMemory:
    """A program for training that lies in no folder."""

    def __init__(self, training: Program) -> None:
        self.training, self.state = training, training.weights

    def other(self, kind: str, sizes: Sizes | None, outputs: tuple[str, ...]) -> Program:
        """Raises EngineError."""
        raise EngineError(f"there is no program for this ({kind})")
