"""Copies operators that a plan assigns to several places: `assign OPS to A, B` computes them in each instead of
sending.

A reader takes the result of the copy where it is itself; readers elsewhere take that of the first place. Each copy has
the gradients of its own readers, so the gradients of weights, which are summed over the places, count each reader once.

>>> from ssdsl.plan.plan import Placement
>>> from tests.lower.by_hand import SPAN, described, graph_of, plan_of, saying
>>> graph = graph_of('''
...     weight w[batch]
...     x[batch] = relu w[batch]
...     y[batch] = relu x[batch]
...     z[batch] = add x[batch] y[batch]
... ''', batch=8)
>>> plan = plan_of(graph, {"pp": 2}, {}, {"x": ("pp", 0), "y": ("pp", 0), "z": ("pp", 1)})
>>> print(described(copy_operators(saying(plan, "x", copies=(Placement("gpus", (("pp", 1),), SPAN),)))))
x = relu w on gpus[pp = 0]
x_copy2 = relu w on gpus[pp = 1]
y = relu x on gpus[pp = 0]
z = add x_copy2 y on gpus[pp = 1]
"""

from ssdsl.plan.edit import Edit
from ssdsl.plan.plan import Plan
from ssdsl.record import replace


def copy_operators(plan: Plan) -> Plan:
    """The plan in which each place that an operator is assigned to has an operator of its own."""
    if not any(record.copies for record in plan.operators.values()):
        return plan
    graph, edit = plan.graph, Edit(plan)
    made: dict[str, list[str]] = {}  # the copies of each operator
    for operator in reversed(graph.computing):  # so that those that read it have their copies already
        record = plan.of(operator.name)
        of_copies = (name for r in graph.readers_of(operator) for name in (r.name, *made.get(r.name, ())))
        readers = [name for name in of_copies if name not in edit.dropped]
        is_result = not graph.results.isdisjoint(o.value for o in operator.outputs)
        for place in record.copies:
            here = [name for name in readers if edit.of(name).home.is_within(place)]
            if here and not is_result:
                name = edit.copy(operator.name, here)
                edit.records[name] = replace(record, place=place, copies=())
                made.setdefault(operator.name, []).append(name)
                readers = [name for name in readers if name not in here]
        edit.records[operator.name] = replace(record, copies=())
        if operator.name in made and not readers and not is_result:  # nobody reads the one of the first place
            edit.drop(operator.name)
    return edit.done()
