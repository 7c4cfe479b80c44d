"""Explains why tasks wait for each other: finds one cycle of them, and what in the plan or the model closes it."""

from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from statistics import median

from ssdsl.ir.comm import AllReduce, Exchange
from ssdsl.ir.function import Function, FunctionInput, OpPart, reads_of, results_of
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import At, Compute
from ssdsl.ir.value import Name
from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.lower.errors import Back, ChangedLine, NeedsWhole, OrderCycle, PlacedOperator, path_of
from ssdsl.lower.tasks.graph import TaskGraph
from ssdsl.lower.tasks.nearest_order import nearest
from ssdsl.model.graph import Operator
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import InternalError
from ssdsl.text.source import Span

MOST_TASKS = 8  # of a cycle that are shown
STARTS = 8  # tasks from which a shorter cycle is looked for

Group = tuple[Submesh, tuple[int, ...]]  # operators on the same devices and in the same sets that the plan orders


def explain_cycle(graph: TaskGraph, stuck: set[int]) -> OrderCycle:
    """The diagnostic for one cycle among the nodes that never became ready."""
    cycle = _short_cycle({k: [a for a in graph.nodes[k].after if a in stuck] for k in sorted(stuck)})
    edges = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    spans = list(dict.fromkeys(graph.spans[e] for e in edges if e in graph.spans))
    names = [graph.describe(t) for k in cycle if (t := graph.nodes[k].task) is not None]
    shown = names if len(names) <= MOST_TASKS else [*names[: MOST_TASKS - 1], f"... {len(names) - MOST_TASKS + 1} more"]
    text = "\n-> ".join([*shown, names[0]])
    tasks = [t for k in cycle if isinstance(t := graph.nodes[k].task, Compute)]
    cause = _whole(graph, tasks) or _back(graph, tasks)
    if isinstance(cause, Back):
        return OrderCycle(cause.maker.span, text, (cause.reader.span,) * (cause.reader.span != cause.maker.span), cause)
    calls = _calls(graph, spans[:4])
    changes = cache(partial(nearest, graph.lowering, spans, calls))
    return OrderCycle(spans[0] if spans else None, text, tuple(spans[1:4]), cause, changes, calls)


def _calls(graph: TaskGraph, spans: list[Span]) -> tuple[Span, ...]:
    """Where the plan calls the functions that have these statements; three at most."""
    plan = graph.plan
    called = [(order.span, order.called) for order in plan.orders]
    called += [(row.span, clock.called) for clock in plan.clocks for row in clock.rows]
    return tuple(dict.fromkeys(call for span, call in called if call is not None and span in spans))[:3]


def _short_cycle(after: dict[int, list[int]]) -> list[int]:
    """A cycle with few detours: the shortest one through any of the first nodes of some cycle."""
    return min((_shortest(after, start) for start in _cycle(after)[:STARTS]), key=len)


def _cycle(after: dict[int, list[int]]) -> list[int]:
    """The first cycle that a depth-first search meets."""
    seen = set[int]()
    for root in after:
        way = {} if root in seen else {root: iter(after[root])}
        while way:
            node = next(reversed(way))
            seen.add(node)
            then = next(way[node], None)
            if then is None:
                del way[node]
            elif then in way:
                return [*way][[*way].index(then) :]
            elif then not in seen:
                way[then] = iter(after[then])
    raise AssertionError("nodes that never become ready have a cycle")


def _shortest(after: dict[int, list[int]], start: int) -> list[int]:
    """The nodes on the shortest way from a node back to itself (breadth-first search)."""
    came: dict[int, int] = {}
    queue = deque([start])
    while start not in came:
        for then in after[k := queue.popleft()]:
            if then not in came:
                came[then] = k
                queue.append(then)
    way = [start]
    while (before := came[way[-1]]) != start:
        way.append(before)
    return [start, *reversed(way[1:])]


# -- a value that goes back to an earlier stage ------------------------------------------------------------------------


class _Flow(Record):
    """A value that goes from one operator to another on other devices; `distance` is how many operators back."""

    value: str
    maker: Operator
    reader: Operator
    distance: float


def _back(graph: TaskGraph, tasks: list[Compute]) -> Back | None:
    """The value on a cycle that goes furthest back in the model, between two groups of operators on different devices
    that need each other's values."""
    groups = _groups(graph)
    flows = [flow for given in _sent(graph, tasks) if (flow := _flow(graph, groups, *given)) is not None]
    if not flows:
        return None
    flow = max(flows, key=lambda f: f.distance)
    own = next((o for o in (flow.maker, flow.reader) if o.path in graph.plan.graph.parents), None)
    path = None if own is None else own.own_path
    is_all = own is not None and _owners(graph, own) == {path}
    narrowed = None if own is None else _narrowed(graph.plan.of(own.name).home.span, path)
    return Back(
        flow.value,
        PlacedOperator.of(graph.plan, flow.maker),
        PlacedOperator.of(graph.plan, flow.reader),
        path,
        own is flow.maker,
        is_all,
        narrowed,
    )


def _narrowed(assign: Span, path: str | None) -> ChangedLine | None:
    """The change that leaves out what a module calls itself: of the `let` whose name an `assign` has, else of the
    `assign`; None for a selection that is made elsewhere, such as an item of a list."""
    script = parse(assign.source)
    found = next((s for s in nodes.walk(script) if isinstance(s, nodes.AssignStatement) and s.span == assign), None)
    if found is None:
        return None
    selected, lets = found.operators, (s for s in script.statements if isinstance(s, nodes.LetStatement))
    if isinstance(selected, nodes.NameExpression):
        named = next((s for s in lets if s.name.text == selected.text and s.formals is None), None)
        if named is None:
            return None
        statement, selected = named.span, named.value
    else:
        statement = assign
    if not isinstance(selected, nodes.Binary) and not _is_path(selected):
        return None
    text, at = statement.text, selected.span.end - statement.start
    return ChangedLine(statement, f'{text[:at]} - model["{path}"]{text[at:]}')


def _is_path(e: nodes.Expr) -> bool:
    """Whether an expression is the model or modules of it by their path."""
    target = e.target if isinstance(e, nodes.Pick) else e
    return isinstance(target, nodes.NameExpression) and target.text == "model"


def _owners(graph: TaskGraph, operator: Operator) -> set[str]:
    """The modules that call, themselves, what the statement that places an operator places."""
    span, places = (
        graph.plan.of(operator.name).home.span,
        ((o, graph.plan.of(o.name).place) for o in graph.plan.graph.operators),
    )
    return {o.own_path for o, place in places if place is not None and place.span == span}


def _groups(graph: TaskGraph) -> dict[str, Group]:
    """The group of each operator that is placed."""
    sets = list(dict.fromkeys(tasks.number for tasks in graph.plan.ordered()))
    submesh = {op.operator: f.submesh for f in graph.functions for op in f.operators()}
    return {name: (at, tuple(k for k in sets if k in graph.plan.of(name).sets)) for name, at in submesh.items()}


def _sent(graph: TaskGraph, tasks: list[Compute]) -> Iterator[tuple[Function, Function, FunctionInput]]:
    """Yields the values that neighbours on a cycle send each other, forward or as gradients: maker, reader, input."""
    for before, task in zip([*tasks[-1:], *tasks], tasks, strict=False):
        for source, target in ((before, task), (task, before)):
            maker, reader = graph.functions[source.function], graph.functions[target.function]
            for given in reader.inputs:
                if given.producer == maker.number and maker.submesh != reader.submesh:
                    yield maker, reader, given


def _flow(
    graph: TaskGraph, groups: dict[str, Group], maker: Function, reader: Function, given: FunctionInput
) -> _Flow | None:
    """The flow of a value, if its reader's group also makes something that its maker's group needs; else None."""
    name = next(o.name for o in maker.outputs if o.name.value == given.var.name.value)
    source, target = graph.operator_of(_maker(maker, name)), graph.operator_of(_reader(reader, given.var.name))
    of = {
        group: [n for n, o in enumerate(graph.plan.graph.operators) if groups.get(o.name) == group]
        for group in (groups[source.name], groups[target.name])
    }
    here, there = of[groups[source.name]], of[groups[target.name]]
    if groups[source.name] == groups[target.name] or not _reaches(graph, there, here):
        return None
    return _Flow(name.value, source, target, median(here) - median(there))


def _reaches(graph: TaskGraph, sources: list[int], targets: list[int]) -> bool:
    """Whether one of the `targets` depends on one of the `sources`; both are numbers of operators."""
    operators = graph.plan.graph.operators
    reached = {o.value for n in sources for o in operators[n].outputs}
    for n in range(min(sources), max(targets) + 1):
        if any(o.value in reached for o in operators[n].inputs):
            reached.update(o.value for o in operators[n].outputs)
            if n in targets:
                return True
    return False


# -- an operator that needs all parts at once --------------------------------------------------------------------------


def _whole(graph: TaskGraph, tasks: list[Compute]) -> NeedsWhole | None:
    """The operator on a cycle that waits for all parts along an index: because it reads a value whose parts are merged,
    or because all parts read its result, whose gradient is then a sum over them."""
    pairs = []
    for before, task in zip([*tasks[-1:], *tasks], tasks, strict=False):
        first, then = graph.functions[before.function], graph.functions[task.function]
        if before.phase.is_forward is task.phase.is_forward:  # backward goes from reader to producer
            pairs.append((first, then, task.at) if task.phase.is_forward else (then, first, before.at))
    found = (find(graph, *pair) for find in (_joins, _read_by_all) for pair in pairs)
    whole = next((whole for whole in found if whole is not None), None)
    return whole and replace(whole, between=_is_between(graph, tasks, whole))


def _is_between(graph: TaskGraph, tasks: list[Compute], whole: NeedsWhole) -> bool:
    """Whether a task on a cycle that runs once is followed by one of a part, both in the phase that needs all parts."""
    in_parts = [any(t.name == whole.index for t in graph.functions[task.function].time) for task in tasks]
    waits = [task.phase.is_forward is not whole.backward for task in tasks]
    return any(in_parts[k] and not in_parts[k - 1] and waits[k] and waits[k - 1] for k in range(len(tasks)))


def _joins(graph: TaskGraph, producer: Function, reader: Function, at: At) -> NeedsWhole | None:
    """The operator of `reader` that reads all parts of a value of `producer`, or for its part `at` some of them."""
    for given in reader.inputs:
        if given.producer == producer.number and given.merges:
            merge = given.merges[0]
            operator = graph.operator_of(_reader(reader, given.var.name))
            where = operator.kind, path_of(graph.plan, operator), operator.source
            index = next(t for t in given.time if t.name in merge.axes)
            is_split, sums = index in reader.time, isinstance(merge, AllReduce)
            if isinstance(merge, Exchange):
                part = at[[t.name for t in reader.time].index(index.name)]
                beside = merge.read_by[part]
                return NeedsWhole(*where, index.name, index.parts, sums=False, split=True, beside=beside, part=part)
            if sums or not is_split:
                others, recut = _parts(reader, index.name), _as_many(graph, producer, reader, given, index.name)
                return NeedsWhole(*where, index.name, index.parts, sums, is_split, others=others, recut=recut)
            ends = graph.operator_of(_maker(producer, _made(producer, given))), operator
            made, read = (_around(graph, op, index.name) for op in ends)
            outside = "" if made == read else next(name for name, _ in made + read)
            recut = next((c for op in ends if (c := _index_first(graph, op, index.name, outside)) is not None), None)
            return NeedsWhole(*where, index.name, index.parts, sums=False, split=True, outside=outside, recut=recut)
    return None


def _as_many(
    graph: TaskGraph, producer: Function, reader: Function, given: FunctionInput, index: str
) -> ChangedLine | None:
    """The change that cuts the operators at both ends of a value into as many parts; None if one of them is not cut."""
    ends = _maker(producer, _made(producer, given)), _reader(reader, given.var.name)
    found = [i for end in ends for i in graph.plan.of(end).indices if i.name == index]
    if len(found) < 2:
        return None
    few, many = sorted(found, key=lambda i: i.digit.parts)
    return ChangedLine(few.span, f"{index} = {many.digit.parts}")


def _index_first(graph: TaskGraph, operator: Operator, index: str, outside: str) -> ChangedLine | None:
    """The change that cuts by an index before the one outside of it; None if another statement cuts by that one."""
    spans = {i.name: i.span for i in graph.plan.of(operator.name).indices}
    inner, outer = spans.get(index), spans.get(outside)
    if inner is None or outer is None or inner.source != outer.source:
        return None
    both = Span(inner.source, outer.start, inner.end)
    between = inner.source.text[outer.end : inner.start]
    return ChangedLine(both, f"{inner.text}{between}{outer.text}") if between.strip() == "," else None


def _around(graph: TaskGraph, operator: Operator, name: str) -> list[tuple[str, int]]:
    """The indices outside the given one on the same dimension of an operator, each with its number of parts."""
    indices = graph.plan.of(operator.name).indices
    own = next((at for at, index in enumerate(indices) if index.name == name), 0)
    return [(i.name, i.digit.parts) for i in indices[:own] if i.dim == indices[own].dim and i.digit.parts > 1]


def _read_by_all(graph: TaskGraph, producer: Function, reader: Function, _: At) -> NeedsWhole | None:
    """The operator of `producer` whose result all parts of `reader` read; its gradient is a sum over them."""
    late = [index for index in reader.time if index not in producer.time]
    for given in reader.inputs:
        if given.producer == producer.number and given.gradient and late:
            operator = graph.operator_of(_maker(producer, _made(producer, given)))
            where = operator.kind, path_of(graph.plan, operator), operator.source
            name, parts = late[0].name, late[0].parts
            others, recut = _parts(producer, name), _as_many(graph, producer, reader, given, name)
            return NeedsWhole(*where, name, parts, sums=True, split=False, backward=True, others=others, recut=recut)
    return None


def _parts(function: Function, index: str) -> int:
    """The number of parts in time that a function has along an index; 0 if none."""
    return next((t.parts for t in function.time if t.name == index), 0)


def _made(producer: Function, given: FunctionInput) -> Name:
    """The name under which a producer leaves the value of an input."""
    return next(o.name for o in producer.outputs if o.name.value == given.var.name.value)


def _maker(function: Function, value: Name) -> str:
    """The operator that makes a value, found back through conversions. Raises InternalError if there is none."""
    while (place := function.uses.makers.get(value)) is not None:
        instr = function.at(place)
        if isinstance(instr, OpPart):
            return instr.operator
        value = instr.source
    raise InternalError(f"function {function.name} does not compute its output {value}")


def _reader(function: Function, value: Name) -> str:
    """The first operator of a function that reads a value, or a conversion of it. Raises InternalError if there is
    none."""
    known = {value}
    for instr in function.body():
        if not known.isdisjoint(reads_of(instr)):
            if isinstance(instr, OpPart):
                return instr.operator
            known.update(v.name for v in results_of(instr))
    raise InternalError(f"function {function.name} does not read its input {value}")
