"""Diagnostics of checkpoints, and of the files that they are converted from or to: E053x."""

from dataclasses import dataclass
from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class CheckpointWrong(Diagnostic):
    """There is no checkpoint in the folder, or it cannot be read.

    A run's folder has a file `latest`, which names the newest checkpoint, and a folder for each checkpoint. Any folder
    that torch.distributed.checkpoint wrote is a checkpoint as well: it has a file `.metadata`. A file that is
    truncated, or whose checksum differs, is not used. No code from the files runs.
    """

    code: ClassVar[str] = "E0530"
    title: ClassVar[str] = "{reason}"
    help: ClassVar[str] = "{change}"
    reason: str
    change: str


@dataclass(frozen=True)
class WeightsUnreadable(Diagnostic):
    """A file of weights is not what its command reads.

    `from-torch` reads files of `torch.save`: tensors by name, or `{"model": tensors by name, "optim": an optimizer's
    state_dict}`. It reads only tensors and plain values, never code. `from-safetensors` reads a `.safetensors` file, or
    a folder with one, or with several and their `.index.json`.
    """

    code: ClassVar[str] = "E0531"
    title: ClassVar[str] = "cannot read weights from `{file}`: {reason}"
    help: ClassVar[str] = "{change}"
    file: str
    reason: str
    change: str


@dataclass(frozen=True)
class OptimizerWithoutNames(Diagnostic):
    """An optimizer's state_dict numbers its weights, but a checkpoint needs their names.

    An optimizer made from `model.named_parameters()` saves the names with the numbers. For one made from
    `model.parameters()` it is unknown which weight a number is.
    """

    code: ClassVar[str] = "E0532"
    title: ClassVar[str] = "the optimizer's state in `{file}` does not name its weights"
    help: ClassVar[str] = "make the optimizer from model.named_parameters() and save again, or take the file without it"
    file: str


@dataclass(frozen=True)
class NoOptimizerState(Diagnostic):
    """The checkpoint has only weights, or no parameter groups of the optimizer: it was made from a file of weights, or
    saved before there was an optimizer."""

    code: ClassVar[str] = "E0533"
    title: ClassVar[str] = "the checkpoint `{folder}` has no state of an optimizer"
    help: ClassVar[str] = "leave out --optim"
    folder: str


@dataclass(frozen=True)
class SafetensorsMissing(Diagnostic):
    """The package `safetensors` reads and writes these files; `transformers` installs it."""

    code: ClassVar[str] = "E0534"
    title: ClassVar[str] = "the package `safetensors` is not installed"
    help: ClassVar[str] = "pip install safetensors"
