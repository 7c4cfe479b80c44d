"""Operators that modules call themselves and that a statement puts far from all their neighbours.

`model - first` takes more than the modules that its writer thought of: a residual or an activation between two
operators of `first` then runs elsewhere, and its operands and results cross to other devices and back.
"""

from collections.abc import Iterator, Sequence

import networkx

from ssdsl.model.graph import Operator
from ssdsl.plan.errors.place import RoundTrip
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.text.source import Span


def round_trips(facts: Facts, model: ModelIndex) -> list[RoundTrip]:
    """A warning for each statement and module whose own operators run between operators on other devices."""
    names = {id(record): str(record.place) for record in facts.distinct(facts.operators).values() if record.place}
    places = {name: names[id(record)] for name, record in facts.operators.items() if record.place is not None}
    if len({*places.values()}) < 2:
        return []
    flows = _flows(model, places)
    found: dict[tuple[Span, str], RoundTrip] = {}
    for run in _runs(model, places, flows):
        first, kinds = run[0], tuple(o.kind for o in run)
        if (here := _around(places, flows, run)) is not None:
            span, there = facts.of(first.name).home.span, places[first.name]
            warning = RoundTrip(span, kinds, there, here, first.module, first.own_path, first.source)
            found.setdefault((span, first.module), warning)
    return list(found.values())


def _flows(model: ModelIndex, places: dict[str, str]) -> "networkx.DiGraph[str]":
    """Who hands values to the operators that modules with modules in them call, and gets values of them, of those that
    have a place."""
    flows: networkx.DiGraph[str] = networkx.DiGraph()
    makers, readers = model.graph.makers, model.graph.readers
    for operator in model.graph.operators:
        name = operator.name
        if name in places and operator.path in model.graph.parents:
            flows.add_node(name, is_own=True)
            given = (makers[o.value].name for o in operator.inputs if o.value in makers)
            flows.add_edges_from((maker, name) for maker in given if maker in places)
            users = (reader.name for o in operator.outputs for reader in readers.get(o.value, ()))
            flows.add_edges_from((name, user) for user in users if user in places)
    return flows


def _runs(model: ModelIndex, places: dict[str, str], flows: "networkx.DiGraph[str]") -> Iterator[Sequence[Operator]]:
    """Operators in one place that modules with modules in them call, those together that hand each other values."""
    own = dict(flows.nodes(data="is_own", default=False))
    together: networkx.Graph[str] = networkx.Graph()
    together.add_nodes_from(name for name, is_own in own.items() if is_own)
    together.add_edges_from((a, b) for a, b in flows.edges if own[a] and own[b] and places[a] == places[b])
    for names in networkx.connected_components(together):
        yield model.ordered(names)


def _around(places: dict[str, str], flows: "networkx.DiGraph[str]", run: Sequence[Operator]) -> str | None:
    """The one other place where all is made that these operators read, and all that they make is read."""
    names = {o.name for o in run}
    makers = {places[n] for name in names for n in flows.predecessors(name) if n not in names}
    readers = {places[n] for name in names for n in flows.successors(name) if n not in names}
    if len(makers) != 1 or makers != readers or places[run[0].name] in makers:
        return None
    return next(iter(makers))
