"""Diagnostics E0420 to E0425: mistakes in the evaluation of a model that trains."""

from collections.abc import Iterator

from ssdsl.runtime.program.returned import Leaf, Step
from ssdsl.text.diagnostic import Diagnostic


class OutputMissing(Diagnostic):
    """An output was asked for that the forward in eval mode does not return.

    An output is a tensor in the forward's result: an attribute of the object (`logits`), a key of the dictionary, or a
    position in the tuple (`1`). A tuple, a list or a dictionary in the result is asked for by its name (`hidden`), and
    one tensor of it by name and position (`hidden.0`).
    """

    code = "E0420"
    title = "the forward returns no tensor `{name}`"
    note = "{said}"
    help = "ask for one that it returns, or return `{name}` beside the loss, in an object or a dictionary"
    name: str
    returned: tuple[Leaf, ...]

    @property
    def said(self) -> str:
        names = ", ".join(_described(self.returned))
        return f"it returns {names}" if names else "it returns its loss alone"


class OutputNotTensor(Diagnostic):
    """An output was asked for that is no tensor and has none, such as a number, a cache object or None.

    The program returns tensors. A number that Python computes is the same for each batch of one shape, and is known
    without the program.
    """

    code = "E0424"
    title = "output `{name}` is {what}, and holds no tensor that a program could return"
    help = "return a tensor as `{name}`, or take it from the module itself"
    name: str
    what: str


class OutputsLeftOut(Diagnostic):
    """The forward returns more than tensors, and all outputs were asked for.

    Tensors are returned as the forward returns them, in tuples, lists and dictionaries. What is no tensor is left out
    of dictionaries, and is None in tuples and lists. An object of any other class counts as a whole, also if it holds
    tensors, as the cache of a model of transformers does.
    """

    code = "E0425"
    severity = "warning"
    title = "left out of the outputs, as no tensors: {those}"
    help = "ask for outputs by name, or return tensors, in tuples, lists or dictionaries"
    left: tuple[str, ...]

    @property
    def those(self) -> str:
        more = len(self.left) - SHOWN
        return ", ".join([*self.left[:SHOWN], *([f"{more} more"] if more > 0 else [])])


SHOWN = 3  # names in a message


def missing_output(name: str, returned: tuple[Leaf, ...]) -> Diagnostic:
    """The diagnostic for an output that is not there, or has no tensor."""
    inside = [leaf for leaf in returned if leaf.is_in(name)]
    if not inside:
        return OutputMissing(None, name, returned)
    is_leaf = len(inside) == 1 and inside[0].name == name
    return OutputNotTensor(None, name, inside[0].what if is_leaf else f"a {_step_into(name, inside).kind}")


def _described(returned: tuple[Leaf, ...]) -> Iterator[str]:
    """The tensors in the result, and the containers with the names of the tensors in these."""
    outer: dict[str, list[Leaf]] = {}
    for leaf in returned:
        if leaf.is_tensor:
            outer.setdefault(str(leaf.path[0].key), []).append(leaf)
    for name, inside in outer.items():
        if len(inside) == 1 and inside[0].name == name:
            yield f"`{name}`"
        else:
            between = " to " if len(inside) > 2 else ", "
            ends = between.join(f"`{leaf.name}`" for leaf in dict.fromkeys((inside[0], inside[-1])))
            yield f"`{name}` (a {inside[0].path[1].kind}: {ends})"


def _step_into(name: str, inside: list[Leaf]) -> Step:
    """The first step from a container into its parts."""
    path = inside[0].path
    depth = next(n for n in range(1, len(path)) if Leaf(path[:n]).name == name)
    return path[depth]


class WeightElsewhere(Diagnostic):
    """The evaluation of a model needs a weight on devices that do not hold it.

    An evaluation uses the weights of training, on the devices where they are. An operator that only the eval mode has
    runs on the devices of a weight that it reads. It cannot read a second weight on other devices.
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
