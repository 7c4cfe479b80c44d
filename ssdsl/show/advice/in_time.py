"""`ssdsl check`: finds splits in time that make devices exchange more activations than the plan without them does.

An index in time cuts a whole dimension. If the operators around are cut otherwise over devices, a part in time may be a
part of what other devices have: with 8 samples, `ep = 2` over devices and `c = 2` in time, the first part of `c` is all
that the first device has. Then each part is gathered.

A statement is a candidate if it cuts an operator in time, a neighbour of it is not cut so, and the two are not cut
alike over devices. The plan is lowered once more without each candidate, and the bytes of both programs are compared.
In a mixture of experts, chunks of the tokens that each device has are tried instead.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from ssdsl.cluster.cluster import Cluster
from ssdsl.identity import ByIdentity, distinct
from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, ReduceScatter
from ssdsl.ir.program import Program
from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import POST
from ssdsl.lang.nodes import walk
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Operator
from ssdsl.plan.model_index import index_model
from ssdsl.plan.paths import starred_module
from ssdsl.plan.plan import Index, OpPlan, Plan
from ssdsl.plan.statements.split import TOKENS, written
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
    plan = compiled.plan
    own = [one for one in _candidates(plan) if one.index.span.source is compiled.source]
    sent = sent_bytes(compiled.program) if own else 0
    for one in own[:MOST]:
        without = _sent_by(_with(plan, one.index.span, lambda _, __: ()), cluster)
        if without is not None and sent > MORE * without:
            line = None
            if (chunks := _of_tokens(plan, one.index)) is not None:
                by_tokens = _sent_by(chunks, cluster)
                line = _line(one.index.span) if by_tokens is not None and by_tokens <= MORE * without else None
            axes = " and ".join(f"`{axis}`" for axis in one.axes)
            module, sizes = starred_module(one.operator.module), (size(sent), size(without))
            yield MoreTraffic(one.index.span, one.index.name, module, *sizes, axes, line)


class _Candidate(Record):
    """An index in time, one of the operators that it cuts, and the axes that cut neighbours of these otherwise."""

    index: Index
    operator: Operator
    axes: tuple[str, ...]


def _candidates(plan: Plan) -> list[_Candidate]:
    """The statements that cut operators in time beside others, which are cut otherwise over devices."""
    meshes = {m.name: {axis for axis, n in m.axes if n > 1} for m in plan.meshes}
    times = ByIdentity(
        (record, tuple(i for i in record.indices if i.digit.parts > 1 and i.name not in meshes[record.place.mesh]))
        for record in distinct(plan.operators.values())
        if record.place is not None
    )
    found: dict[Span, _Candidate] = {}
    for operator in (o for o in plan.graph.computing if times[plan.of(o.name)]):
        for other in (*plan.graph.makers_of(operator), *plan.graph.readers_of(operator)):
            record = plan.of(other.name)
            names = {i.name for i in record.indices}
            alone = [i for i in times[plan.of(operator.name)] if i.name not in names]
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


# -- other plans, and their traffic ------------------------------------------------------------------------------------


def _with(plan: Plan, span: Span, change: Callable[[Operator, Index], tuple[Index, ...]]) -> Plan:
    """The plan with other indices in place of a statement's, and without orders, which may name its parts."""
    changed = {
        name: tuple(
            sorted(
                (
                    new
                    for i in record.indices
                    for new in (change(plan.graph.by_name[name], i) if i.span == span else (i,))
                ),
                key=lambda i: i.within,
            )
        )
        for name, record in plan.operators.items()
        if any(i.span == span for i in record.indices)
    }
    return replace(plan.cutting(changed), orders=(), clocks=())


def _of_tokens(plan: Plan, index: Index) -> Plan | None:
    """The plan with chunks of the tokens that each device has in place of an index; None if the model has no mixture of
    experts, or the name of tokens for something else."""
    model = index_model(plan.graph)
    if not model.tokens or TOKENS in plan.graph.dim_names.values() or index.digit.at is not None or index.within:
        return None

    def change(operator: Operator, index: Index) -> tuple[Index, ...]:
        dims = [number for number, dim in enumerate(operator.dims) if dim.cls in model.tokens and not dim.fixed]
        return tuple(replace(index, dim=number, within=True) for number in dims[:1])

    return _with(plan, index.span, change)


def _line(span: Span) -> str | None:
    """The statement of an index with tokens as its dimension; None if it is longer than a help may be."""
    for node in walk(parse(span.source)):
        if isinstance(node, nodes.SplitStatement) and any(cut.span == span for cut in node.cuts):
            operators = written(node.operators, POST, "")
            return (
                f"split {operators} by {TOKENS} into {span.source.text[span.start : span.end]}" if operators else None
            )
    return None


def _sent_by(plan: Plan, cluster: Cluster | None) -> int | None:
    """The bytes that the program of a plan sends; None if the plan cannot be without what was changed."""
    try:
        return sent_bytes(lower(plan, cluster))
    except PlanError:
        return None


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
