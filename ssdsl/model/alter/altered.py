"""What a plan changes of a model: the types of operators (`precision OPS to bf16`), and results that are compressed
(`compress OPS by topk(64) along embed`). The model that a plan trains is then the captured one with these changes, on
one device as on many."""

from collections.abc import Mapping

from ssdsl.model.alter.compress import Compressed, compress
from ssdsl.model.alter.recast import recast
from ssdsl.model.graph import Graph, Operator, Twin, twins
from ssdsl.record import Record


class Altered(Record):
    """The changes, by the keys of the operators' twins; the graph with them, which one device runs, and the operators
    that only it has."""

    types: Mapping[Twin, str]
    compressed: tuple[Compressed, ...]
    graph: Graph
    added: tuple[Operator, ...]

    def of(self, graph: Graph) -> Graph:
        """Another graph of the model, such as that of an evaluation, with the same changes."""
        return _graph(graph, self.types, self.compressed)

    def without_compression(self, graph: Graph) -> "Altered | None":
        """The changes of the captured graph but for compressions; None if there are no others."""
        return altered(graph, self.types, ()) if self.types else None


def altered(graph: Graph, types: Mapping[Twin, str], compressed: tuple[Compressed, ...]) -> Altered:
    """A model with these changes. Raises CannotCompute for an operator without a kernel for its type."""
    made = _graph(graph, types, compressed)
    return Altered(types, compressed, made, tuple(o for o in made.operators if o.name not in graph.by_name))


def _graph(graph: Graph, types: Mapping[Twin, str], compressed: tuple[Compressed, ...]) -> Graph:
    from ssdsl.model.observe.observe import observed  # which loads torch

    named = {o.name: types[twin] for twin, o in twins(graph.operators) if twin in types}
    changed = compress(graph, compressed) if compressed else graph
    return observed(recast(changed, named) if named else changed)
