"""Diagnostics E0420 to E0423: mistakes in the evaluation of a model that trains."""

from dataclasses import dataclass
from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class OutputMissing(Diagnostic):
    """An output was asked for that the forward does not return in eval mode.

    An output is a tensor of what the forward returns: an attribute of the object (`logits`), a key of the dictionary,
    or the position in the tuple (`1`).
    """

    code: ClassVar[str] = "E0420"
    title: ClassVar[str] = "the forward returns no tensor `{name}`"
    note: ClassVar[str] = "{returned}"
    help: ClassVar[str] = (
        "ask for one that it returns, or return `{name}` beside the loss, in an object or a dictionary"
    )
    name: str
    known: tuple[str, ...]

    @property
    def returned(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.known)
        return f"it returns {names}" if names else "it returns its loss alone"


@dataclass(frozen=True)
class OutputNotComputed(Diagnostic):
    """An output was asked for that is computed on no device of the plan.

    An output is what operators on weights leave. An input, a weight, or what follows from inputs and constants alone is
    known without the program.
    """

    code: ClassVar[str] = "E0421"
    title: ClassVar[str] = "output `{name}` is computed on no device: it {reason}"
    help: ClassVar[str] = "do not ask for `{name}`: {change}"
    name: str
    reason: str
    change: str


@dataclass(frozen=True)
class WeightElsewhere(Diagnostic):
    """The evaluation of a model needs a weight on devices that do not hold it.

    An evaluation runs on the weights that training has, where they are. An operator that only the eval mode has runs
    beside a weight that it reads; it cannot read a second one on other devices, nor one that training never reads.
    """

    code: ClassVar[str] = "E0422"
    title: ClassVar[str] = "in eval mode the model reads `{weight}` on {needed}, and in training it is on {held}"
    help: ClassVar[str] = "read `{weight}` where training reads it: in the same module, on the same devices"
    weight: str
    needed: str
    held: str


@dataclass(frozen=True)
class EvaluationLeftOut(Diagnostic):
    """A program was written that trains, and does not evaluate: there is no graph of the module in eval mode.

    `ssdsl compile` writes both. Ask for an output with `--output` to see why there is no evaluation as an error.
    """

    code: ClassVar[str] = "E0423"
    severity: ClassVar[str] = "warning"
    title: ClassVar[str] = "the program does not evaluate: {reason}"
    help: ClassVar[str] = "call the module with the batch behind `model.eval()`: it has to return its loss there too"
    reason: str
