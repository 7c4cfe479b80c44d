"""A plan that is open in an editor: its text as it is now, and what was found of it last."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdsl.assist.names import Occurrence, occurrences
from ssdsl.assist.reading import DraftReading
from ssdsl.lang.header import Header, header_of
from ssdsl.lang.recover import Recovered, recovered
from ssdsl.model.graph import Graph
from ssdsl.plan.check import warnings
from ssdsl.plan.interpret import read_recovered
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import as_json
from ssdsl.text.source import Source

Answer = dict[str, Any]
NO_MODEL = index_model(Graph("", (), {}, "", {}, {}))
CLUSTER = "laptop"  # of a plan whose header names none


@dataclass(slots=True)
class OpenPlan:
    """A document. `reading` is of the last text that was read for the model, so of this one or of one a moment ago."""

    path: Path
    source: Source
    found: Recovered
    header: Header
    model: ModelIndex | None = None
    reading: DraftReading | None = None
    costs: Mapping[int, list[str]] = field(default_factory=dict)
    problems: list[Answer] = field(default_factory=list)  # as shown
    _names: tuple[Occurrence, ...] | None = None

    @classmethod
    def of(cls, path: Path, text: str) -> "OpenPlan":
        """A document that was opened."""
        source = Source(path.name, text)
        return cls(path, source, recovered(source), _header(source))

    def change(self, text: str) -> None:
        """The text is another one."""
        self.source = Source(self.path.name, text)
        self.found, self.header, self._names = recovered(self.source), _header(self.source), None

    @property
    def cluster(self) -> str:
        return self.header.given("--cluster") or CLUSTER

    @property
    def params(self) -> dict[str, int]:
        """The params that the header sets."""
        return self.header.numbers

    @property
    def without_model(self) -> DraftReading:
        """What is known of the text before a model is there: the words of the language."""
        context, _ = read_recovered(self.found, NO_MODEL, self.params, self.path.parent)
        return DraftReading(self.source, context, self.path.parent)

    @property
    def names(self) -> tuple[Occurrence, ...]:
        """The names of the text, where it parses."""
        if self._names is None:
            self._names = occurrences(self.found.script)
        return self._names

    @property
    def syntax(self) -> list[Answer]:
        """The mistakes of syntax."""
        return [*map(as_json, self.found.mistakes)]

    def read(self) -> tuple[DraftReading, list[Diagnostic]]:
        """Reads the text for the model: all mistakes, or else the warnings of what is written so far. Changes nothing,
        so that a thread may do it."""
        assert self.model is not None
        source, folder = self.source, self.path.parent
        context, mistakes = read_recovered(self.found, self.model, self.params, folder)
        found = [*mistakes] if mistakes else warnings(context.facts, context.model, source)
        return DraftReading(source, context, folder), found


def _header(source: Source) -> Header:
    try:
        return header_of(source)
    except PlanError:  # it is among the mistakes of syntax
        return Header()
