"""What is known before a plan is read: its model's look-up tables, and the files that were parsed for plans before."""

from dataclasses import dataclass, field

from ssdsl.lang.nodes import Script
from ssdsl.lang.parse import parse
from ssdsl.model.graph import Graph
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.text.source import Source

MOST_SCRIPTS = 64


@dataclass(frozen=True, slots=True)
class Known:
    """Of a model, for one plan or for many. A text that was parsed is not parsed again."""

    model: ModelIndex
    _scripts: dict[Source, Script] = field(default_factory=dict, repr=False)

    def script(self, source: Source) -> Script:
        """The syntax of a text; raises PlanError."""
        if source not in self._scripts:
            if len(self._scripts) >= MOST_SCRIPTS:
                self._scripts.clear()
            self._scripts[source] = parse(source)
        return self._scripts[source]


def known_of(graph: Graph) -> Known:
    """What is known of a model at first."""
    return Known(index_model(graph))
