"""What can be wrong with a model once it is loaded: capture, missing rules, randomness."""

from dataclasses import dataclass
from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class CaptureFailed(Diagnostic):
    """`torch.export` could not turn the module into a graph.

    ssdsl captures the module with `torch.export.export(strict=False)`, which follows one run of `forward` on the
    example batch. Control flow that depends on the values of tensors (`if x.sum() > 0`, `.item()`), shapes that do
    (`x[x > 0]`) and operators that torch.export does not know stop it. Rewrite that place with tensor operations
    (`torch.where`), or move it out of the module.
    """

    code: ClassVar[str] = "E0330"
    title: ClassVar[str] = "model `{model}` cannot be captured"
    note: ClassVar[str] = "{reason}"
    help: ClassVar[str] = "{change}"
    model: str
    reason: str
    change: str = "replace control flow that depends on tensor values by tensor operations such as `torch.where`"


@dataclass(frozen=True)
class RandomOperator(Diagnostic):
    """The model draws random numbers in its forward pass.

    A plan computes exactly what one device computes, and random numbers drawn by parts on several devices are not those
    that one device draws. Set the probabilities of dropout and stochastic depth to zero. With dropout, a plan can be
    checked and shown, but not compiled, run or verified; noise without a rule cannot be captured at all.
    """

    code: ClassVar[str] = "E0332"
    title: ClassVar[str] = "operator `{kind}` draws random numbers, so no plan could compute what one device computes"
    note: ClassVar[str] = "called in module `{path}` at {source}"
    help: ClassVar[str] = "set its probability to 0 (for example `attn_pdrop=0, resid_pdrop=0, embd_pdrop=0`)"
    kind: str
    path: str
    source: str


@dataclass(frozen=True)
class NotALoss(Diagnostic):
    """The module's forward must return its loss: one scalar, or an object with a scalar `loss`."""

    code: ClassVar[str] = "E0333"
    title: ClassVar[str] = "model `{model}` returns {what}, not a loss"
    help: ClassVar[str] = "return one scalar tensor that depends on the weights, or an object with it as `.loss`"
    model: str
    what: str
