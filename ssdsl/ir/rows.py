"""Rows that lie with their experts: values with an axis of which the program does not know how long its runs are."""

from ssdsl.model.graph import Graph, Value

DISPATCH, COUNT = "ssdsl::dispatch", "ssdsl::count_rows"


def slots_of(value: Value) -> int | None:
    """The class of the slots of the rows of a value; None where its first axis has none."""
    return next((cls for cls in value.factors[0] if cls < 0), None) if value.factors else None


def counts_of(graph: Graph) -> dict[int, str]:
    """By the class of their slots, the value that says how many rows each run has."""
    counted = {o.inputs[0].value: o.outputs[0].value for o in graph.operators if o.target == COUNT}
    sent = (o for o in graph.operators if o.target == DISPATCH)
    slots = ((slots_of(graph.values[o.outputs[0].value]), o.inputs[1].value) for o in sent)
    return {cls: counted[ids] for cls, ids in slots if cls is not None and ids in counted}
