"""Which results of a call, and which gradients that its backward makes, a collective may change in place: new tensors
that autograd does not keep."""

from ssdsl.model.graph import Operator

OWN_CALL = ("", "conv_part", "conv_transpose_part")  # kernels: a plain call, or one of what its windows read


def overwritable(operator: Operator) -> tuple[frozenset[str], frozenset[str]]:
    """The results that may be overwritten, and the values that are read whose gradients may be, by their names.

    What does not run on tensors without numbers is what its row says.
    """
    names = tuple(dict.fromkeys(o.value for o in operator.inputs))
    outputs = tuple(o.value for o in operator.outputs)
    found = operator.observed
    if found is None or found.results is None or found.gradients is None:
        return (frozenset(outputs), frozenset(names)) if operator.row.fresh else (frozenset(), frozenset())
    return frozenset(outputs[i] for i in found.results), frozenset(names[i] for i in found.gradients)
