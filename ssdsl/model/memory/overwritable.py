"""Finds results of a call, and gradients that its backward makes, that a collective may change in place: new tensors
that autograd does not keep."""

from ssdsl.model.graph import Operator

OWN_CALL = ("", "conv_part", "conv_transpose_part")  # kernels of parts that run the operator's own call


def overwritable(operator: Operator) -> tuple[frozenset[str], frozenset[str]]:
    """The names of results that may be overwritten, and of values read whose gradients may be.

    If the call does not run on tensors without numbers, its row decides (`fresh`).
    """
    names = tuple(dict.fromkeys(o.value for o in operator.inputs))
    outputs = tuple(o.value for o in operator.outputs)
    found = operator.observed
    if found is None or found.results is None or found.gradients is None:
        return (frozenset(outputs), frozenset(names)) if operator.row.fresh else (frozenset(), frozenset())
    return frozenset(outputs[i] for i in found.results), frozenset(names[i] for i in found.gradients)
