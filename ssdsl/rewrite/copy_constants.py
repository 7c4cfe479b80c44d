"""Copies operators that repeat a constant to the places of their readers, so that no message carries their results.

A mask that is repeated for every sample depends on nothing, but its whole result is as large as the batch. So it is not
a constant that is computed once and kept: each part repeats it for itself. If operators in several places read it, as
the stages of a pipeline do, each place has an operator of its own. It is cut as its first reader there is, and as the
plan cuts it itself. An operator that a plan assigns by itself stays there.

>>> from tests.lower.by_hand import described, graph_of, plan_of
>>> graph = graph_of('''
...     weight w[batch]
...     constant c[batch]
...     mask[batch] = relu c[batch]
...     y[batch] = add w[batch] mask[batch]
...     z[batch] = add y[batch] mask[batch]
... ''', batch=8)
>>> first, second = ("pp", 0), ("pp", 1)
>>> plan = plan_of(graph, {"pp": 2}, {"batch": "m 2"}, {"mask": first, "y": first, "z": second})
>>> print(described(plan))
mask = relu c on gpus[pp = 0] (batch 8 by m)
y = add w mask on gpus[pp = 0] (batch 8 by m)
z = add y mask on gpus[pp = 1] (batch 8 by m)
>>> print(described(copy_constants(plan)))
mask = relu c on gpus[pp = 0] (batch 8 by m)
mask_copy2 = relu c on gpus[pp = 1] (batch 8 by m)
y = add w mask on gpus[pp = 0] (batch 8 by m)
z = add y mask_copy2 on gpus[pp = 1] (batch 8 by m)
"""

from collections.abc import Iterable, Iterator

from ssdsl.model.graph import Operator
from ssdsl.plan.edit import Edit
from ssdsl.plan.neighbours.place_beside import beside
from ssdsl.plan.plan import NOTHING, OpPlan, Placement, Plan


def copy_constants(plan: Plan) -> Plan:
    """The plan in which each place that reads a repeated constant has an operator of its own for it, with what the plan
    says of the original."""
    graph, results = plan.graph, plan.graph.results
    repeated = (o for o in graph.operators if o.name in graph.repeated and not plan.of(o.name).stays)
    moving = [o for o in repeated if results.isdisjoint(output.value for output in o.outputs)]
    if all(plan.of(o.name).home == plan.of(r.name).home for o in moving for r in graph.readers_of(o)):
        return plan
    edit, copies = Edit(plan), dict[str, list[str]]()  # the names of each operator's copies, its own first
    for operator in reversed(moving):  # so that those that read it have copies already
        readers = [name for r in graph.readers_of(operator) for name in copies.get(r.name, [r.name])]
        copies[operator.name] = [*_copied(edit, operator, readers)] or [operator.name]
    return edit.done()


def _copied(edit: Edit, operator: Operator, readers: Iterable[str]) -> Iterator[str]:
    """Puts an operator beside its first reader, and copies of it beside readers in other places. Yields all names."""
    places = dict[Placement, list[str]]()
    for reader in readers:
        places.setdefault(edit.of(reader).home, []).append(reader)
    own = edit.of(operator.name)
    for number, (place, there) in enumerate(places.items()):
        name, host = edit.copy(operator.name, there) if number else operator.name, there[0]
        edit.records[name] = own if place == own.home else _beside(edit.operators[host], edit.of(host), operator, own)
        yield name


def _beside(host: Operator, there: OpPlan, operator: Operator, own: OpPlan) -> OpPlan:
    """The record of a copy in the place of its reader `host`. It keeps its own cuts where the place has the same
    axes."""
    kept = OpPlan(indices=own.indices, whole=own.whole) if _axes(there.home) == _axes(own.home) else NOTHING
    return beside(host, there, operator, kept, combines=False)


def _axes(place: Placement) -> tuple[str, list[str]]:
    """The mesh of a place, and the axes that it fixes."""
    return place.mesh, [axis for axis, _ in place.fixed]
