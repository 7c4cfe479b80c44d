"""Rows sorted by their experts: values whose first axis has one run of rows for each expert, of a length that only the
run knows.

The elements of such a run are its *slots*. Their dimension is none of the model's: `rewrite/route_rows.py`
makes it, and numbers its class -1, -2, ..., so a class is one of slots if it is negative.
"""

from ssdsl.model.graph import Graph, Value

DISPATCH, COUNT = "ssdsl::dispatch", "ssdsl::count_rows"


def slots_of(value: Value) -> int | None:
    """The negative class of the slots in a value's first axis; None if that axis has no slots."""
    return next((cls for cls in value.factors[0] if cls < 0), None) if value.factors else None


def counts_of(graph: Graph) -> dict[int, str]:
    """For each class of slots, the name of the value that holds the number of rows of each run."""
    counted = {o.inputs[0].value: o.outputs[0].value for o in graph.operators if o.target == COUNT}
    sent = (o for o in graph.operators if o.target == DISPATCH)
    slots = ((slots_of(graph.values[o.outputs[0].value]), o.inputs[1].value) for o in sent)
    return {cls: counted[ids] for cls, ids in slots if cls is not None and ids in counted}
