"""`ssdsl show PLAN graph`: the captured model as text, with repeated layers cut short."""

from ssdsl.model.graph import Graph
from ssdsl.model.graph_text import graph_text
from ssdsl.show.tables.program import folded

LONGEST = 512  # lines of a layer


def shown_graph(graph: Graph, every: bool = False) -> str:
    """The text of a graph; without `every`, layers that differ only in numbers are shown once."""
    text = graph_text(graph)
    return text if every else "\n".join(folded(text.splitlines(), LONGEST)) + "\n"
