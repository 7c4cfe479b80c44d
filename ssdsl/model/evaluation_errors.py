"""Diagnostics E0420 to E0423: mistakes in the evaluation of a model that trains."""

from ssdsl.text.diagnostic import Diagnostic


class OutputMissing(Diagnostic):
    """An output was asked for that the forward in eval mode does not return.

    An output is a tensor in the forward's result: an attribute of the object (`logits`), a key of the dictionary, or a
    position in the tuple (`1`).
    """

    code = "E0420"
    title = "the forward returns no tensor `{name}`"
    note = "{returned}"
    help = "ask for one that it returns, or return `{name}` beside the loss, in an object or a dictionary"
    name: str
    known: tuple[str, ...]

    @property
    def returned(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.known)
        return f"it returns {names}" if names else "it returns its loss alone"


class OutputNotComputed(Diagnostic):
    """An output was asked for that no device of the plan computes.

    Outputs are results of operators on weights. An input, a weight, or a value computed from inputs and constants alone
    is known without the program.
    """

    code = "E0421"
    title = "output `{name}` is computed on no device: it {reason}"
    help = "do not ask for `{name}`: {change}"
    name: str
    reason: str
    change: str


class WeightElsewhere(Diagnostic):
    """The evaluation of a model needs a weight on devices that do not hold it.

    An evaluation uses the weights of training, on the devices where they are. An operator that only the eval mode has
    runs on the devices of a weight that it reads. It cannot read a second weight on other devices, nor one that
    training never reads.
    """

    code = "E0422"
    title = "in eval mode the model reads `{weight}` on {needed}, and in training it is on {held}"
    help = "read `{weight}` where training reads it: in the same module, on the same devices"
    weight: str
    needed: str
    held: str


class EvaluationLeftOut(Diagnostic):
    """The written program trains but does not evaluate, because there is no graph of the module in eval mode.

    `ssdsl compile` writes both programs. Ask for an output with `--output` to see the reason as an error.
    """

    code = "E0423"
    severity = "warning"
    title = "the program does not evaluate: {reason}"
    help = "call the module on the batch after `model.eval()`: it must return its loss then, too"
    reason: str
