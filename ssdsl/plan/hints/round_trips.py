"""Warns of operators that a module itself calls and that a statement puts far from all their neighbours.

`model - first` takes more than the modules that its author thought of: a residual or an activation between two
operators of `first` then runs elsewhere, and its operands and results travel to other devices and back.
"""

from collections.abc import Iterator, Sequence

from ssdsl.identity import ByIdentity, distinct
from ssdsl.model.graph import Operator
from ssdsl.plan.errors.place import RoundTrip
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.text.source import Span


def round_trips(facts: Facts, model: ModelIndex) -> list[RoundTrip]:
    """A warning for each statement and module whose own operators run between operators on other devices."""
    placed = {name: record.place for name, record in facts.operators.items() if record.place is not None}
    names = ByIdentity((place, str(place)) for place in distinct(placed.values()))
    places = {name: names[place] for name, place in placed.items()}
    if len({*places.values()}) < 2:
        return []
    flows = _Flows(model, places)
    found: dict[tuple[Span, str], RoundTrip] = {}
    for run in _runs(model, places, flows):
        first, kinds = run[0], tuple(o.kind for o in run)
        if (here := _around(places, flows, run)) is not None:
            span, there = facts.of(first.name).home.span, places[first.name]
            owners = {
                o.own_path for o in model.graph.operators if o.name in places and facts.of(o.name).home.span == span
            }
            words = first.module, first.own_path, first.source
            warning = RoundTrip(span, kinds, there, here, *words, is_all=owners == {first.own_path})
            found.setdefault((span, first.module), warning)
    return list(found.values())


class _Flows:
    """For each placed operator that a module with submodules calls itself: the placed operators that it reads from, and
    those that read it."""

    def __init__(self, model: ModelIndex, places: dict[str, str]) -> None:
        self.makers: dict[str, set[str]] = {}
        self.readers: dict[str, set[str]] = {}
        graph, parents = model.graph, model.graph.parents
        for operator in graph.operators:
            if operator.path in parents and operator.name in places:
                self.makers[operator.name] = {o.name for o in graph.makers_of(operator) if o.name in places}
                self.readers[operator.name] = {o.name for o in graph.readers_of(operator) if o.name in places}


def _runs(model: ModelIndex, places: dict[str, str], flows: _Flows) -> Iterator[Sequence[Operator]]:
    """Groups of such operators in one place, connected by values that they hand each other."""
    left = dict.fromkeys(flows.makers)
    while left:
        waiting, names = [next(iter(left))], set[str]()
        while waiting:
            if (name := waiting.pop()) in left:
                del left[name]
                names.add(name)
                waiting += (n for n in flows.makers[name] | flows.readers[name] if places[n] == places[name])
        yield model.ordered(names)


def _around(places: dict[str, str], flows: _Flows, run: Sequence[Operator]) -> str | None:
    """The one other place in which everything these operators read is made, and everything they make is read; else
    None."""
    names = {o.name for o in run}
    makers = {places[n] for name in names for n in flows.makers[name] - names}
    readers = {places[n] for name in names for n in flows.readers[name] - names}
    if len(makers) != 1 or makers != readers or places[run[0].name] in makers:
        return None
    return next(iter(makers))
