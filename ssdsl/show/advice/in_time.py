"""`ssdsl check`: finds splits in time that make devices exchange more activations than the plan without them does.

An index in time cuts a whole dimension. If the operators around are cut otherwise over devices, a part in time may be a
part of what other devices have: with 8 samples, `ep = 2` over devices and `c = 2` in time, the first part of `c` is all
that the first device has. Then each part is gathered.

A statement is a candidate if it cuts an operator in time, a neighbour of it is not cut so, and the two are not cut
alike over devices. The plan is lowered once more without each candidate, and the bytes of both programs are compared.
"""

import math
from collections.abc import Iterator, Mapping

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, ReduceScatter
from ssdsl.ir.program import Program
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Operator
from ssdsl.plan.eval.paths import starred_module
from ssdsl.plan.plan import Index, OpPlan, Plan
from ssdsl.record import Record, replace
from ssdsl.show.errors import MoreTraffic
from ssdsl.show.tables.communication import communications
from ssdsl.show.view import size
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span
from ssdsl.workspace import Compiled

ACTIVATIONS = ("forward", "backward")
IN_PARTS = frozenset(kind.kind for kind in (AllGather, ReduceScatter, AllToAll))
MORE = 1.1  # times the bytes without the statement: a warning
MOST = 3  # candidates, each of which takes as long as a compilation


def more_traffic(compiled: Compiled, cluster: Cluster | None = None) -> Iterator[MoreTraffic]:
    """A warning for each split in time of the plan's own text without which devices would exchange fewer bytes."""
    own = [one for one in _candidates(compiled.plan) if one.index.span.source is compiled.source]
    sent = sent_bytes(compiled.program) if own else 0
    for one in own[:MOST]:
        try:
            without = sent_bytes(lower(_without(compiled.plan, one.index.span), cluster))
        except PlanError:  # the rest of the plan needs the statement
            continue
        if sent > MORE * without:
            yield _warning(one, sent, without)


class _Candidate(Record):
    """An index in time, one of the operators that it cuts, and the axes that cut neighbours of these otherwise."""

    index: Index
    operator: Operator
    axes: tuple[str, ...]


def _candidates(plan: Plan) -> list[_Candidate]:
    """The statements that cut operators in time beside others, which are cut otherwise over devices."""
    meshes = {m.name: {axis for axis, n in m.axes if n > 1} for m in plan.meshes}
    placed = {id(r): (r, meshes[r.place.mesh]) for r in plan.operators.values() if r.place is not None}
    times = {
        key: tuple(i for i in r.indices if i.count > 1 and i.name not in axes) for key, (r, axes) in placed.items()
    }
    found: dict[Span, _Candidate] = {}
    for operator in (o for o in plan.graph.computing if times[id(plan.of(o.name))]):
        for other in (*plan.graph.makers_of(operator), *plan.graph.readers_of(operator)):
            record = plan.of(other.name)
            names = {i.name for i in record.indices}
            alone = [i for i in times[id(plan.of(operator.name))] if i.name not in names]
            if not alone or record.place is None or not other.dims:  # one number, as of the loss, is no traffic
                continue
            here, there = (_over_devices(o, plan.of(o.name), meshes) for o in (operator, other))
            if here != there:
                for index in alone:
                    one = found.setdefault(index.span, _Candidate(index, operator, ()))
                    axes = dict.fromkeys((*one.axes, *(axis for axis, _ in sorted(here ^ there))))
                    found[index.span] = replace(one, axes=tuple(axes))
    return list(found.values())


def _over_devices(operator: Operator, record: OpPlan, meshes: Mapping[str, set[str]]) -> frozenset[tuple[str, int]]:
    """The axes of the mesh that cut an operator, each with the class of the dimension."""
    axes = meshes[record.home.mesh]
    return frozenset((i.name, operator.dims[i.dim].cls) for i in record.indices if i.name in axes)


def _without(plan: Plan, span: Span) -> Plan:
    """The plan without the index of a statement, and without orders, which may name its parts."""
    left = {
        name: tuple(i for i in record.indices if i.span != span)
        for name, record in plan.operators.items()
        if any(i.span == span for i in record.indices)
    }
    return replace(plan.cutting(left), orders=(), clocks=())


def sent_bytes(program: Program) -> int:
    """The bytes of activations and their gradients that all devices send in a step. A ring sends (n - 1) / n of what
    n devices gather, scatter or exchange, and twice that for an all_reduce."""
    total = 0.0
    for c in communications(program):
        ranks = math.prod(n for axis, n in c.on.axes if axis in c.over)
        part = (ranks - 1) / ranks
        times = {**dict.fromkeys(IN_PARTS, part), AllReduce.kind: 2 * part}.get(c.kind, 1)
        total += c.size_bytes * times * c.on.size if c.when in ACTIVATIONS else 0
    return round(total)


def _warning(one: _Candidate, sent: int, without: int) -> MoreTraffic:
    return MoreTraffic(
        one.index.span,
        one.index.name,
        starred_module(one.operator.module),
        size(sent),
        size(without),
        " and ".join(f"`{axis}`" for axis in one.axes),
    )
