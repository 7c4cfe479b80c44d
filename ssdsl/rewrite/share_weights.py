"""Gives a weight one home where a plan reads it on sets of devices that share some but not all devices.

An embedding over all devices and a head with the same weight on the last stage, a block that three stages use: the
weight lives on the largest of these sets of devices, and the others get it from there, once a step, as they would get
any value. Its gradient comes back the same way, so it is summed once and there is one copy to update. Weights on
disjoint sets of devices have copies, which `SumTiedGrads` keeps equal.

>>> from tests.lower.by_hand import described, graph_of, plan_of
>>> graph = graph_of('''
...     weight w[batch]
...     weight v[batch]
...     x[batch] = add w[batch] v[batch]
...     y[batch] = add w[batch] x[batch]
... ''', batch=8)
>>> plan = plan_of(graph, {"pp": 2, "dp": 2}, {"batch": "dp 2"}, {"y": ("pp", 1)})
>>> print(described(share_weights(plan)))
x = add w v on gpus (batch 8 by dp)
w_shared = clone w on gpus (batch 8 by dp)
y = add w_shared x on gpus[pp = 1] (batch 8 by dp)
"""

from collections.abc import Sequence

from ssdsl.model.graph import Graph, Operand, Operator, Origin, Ref, Stage, dims_of
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import target
from ssdsl.plan.edit import Edit, Numbers
from ssdsl.plan.neighbours.place_beside import beside
from ssdsl.plan.plan import OpPlan, Placement, Plan

CLONE = target("aten::clone", "self")


def share_weights(plan: Plan) -> Plan:
    """The plan in which each weight lives on equal or disjoint sets of devices."""
    edit: Edit | None = None
    for value, readers in plan.graph.readers.items():
        if (
            plan.graph.values[value].origin in (Origin.WEIGHT, Origin.BUFFER)
            and value not in plan.graph.users_of_changed
        ):
            for home, others in _shared(plan, readers):
                edit = edit or Edit(plan)
                _send(edit, plan.graph, value, home, others)
    return plan if edit is None else edit.done()


def _shared(plan: Plan, readers: Sequence[Operator]) -> list[tuple[Operator, list[Operator]]]:
    """For each group of sets of devices that overlap, a reader in the largest of them, and those in the others."""
    places: dict[Placement, list[Operator]] = {}
    for reader in readers:
        if (place := plan.of(reader.name).place) is not None:
            places.setdefault(place, []).append(reader)
    groups: list[list[Placement]] = []
    for place in places if len(places) > 1 else ():
        near = [g for g in groups if any(place.overlaps(other) for other in g)]
        groups = [*(g for g in groups if g not in near), [place, *(p for g in near for p in g)]]
    found = []
    for group in (g for g in groups if len(g) > 1):
        home = min(sorted(group, key=list(places).index), key=lambda place: len(place.fixed))
        found.append(
            (places[home][0], [o for place in places if place in group and place != home for o in places[place]])
        )
    return found


def _send(edit: Edit, graph: Graph, weight: str, host: Operator, readers: Sequence[Operator]) -> None:
    """Inserts an operator at the home of a weight whose result the `readers` elsewhere read."""
    value = graph.values[weight]
    dims, axes = dims_of(host, next(o for o in host.inputs if o.value == weight))
    name = edit.free(f"{weight.replace('.', '_')}_shared")
    read, made = Operand(weight, axes), Operand(name, axes)
    form = "clone", CLONE.name, host.path, host.source, Stage.COMPUTE, (CLONE, Ref(weight)), ()
    operator = Operator(name, *form, (read,), (made,), tuple(dims), ROWS["aten::clone"])
    there = edit.of(host.name)
    axes_of_home = next(mesh.axes for mesh in edit.plan.meshes if mesh.name == there.home.mesh)
    cuts = beside(host, there, operator, combines=False).indices
    in_space = tuple(index for index in cuts if index.name in dict(axes_of_home))
    record = OpPlan(there.place, in_space)
    edit.insert(operator, record, Numbers.of(value), beside=readers[0].name, before=True)
    for reader in readers:
        edit.read(reader.name, {weight: name})
