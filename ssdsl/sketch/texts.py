"""The texts of a search: the plans that are named, or all that come with ssdsl, and what they are compared with."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import example_plans, plan_path
from ssdsl.text.source import Source

ALONE = "data_parallel"  # with what all plans are compared where none is named
Name = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by file, each once: those that are searched, and that of the baseline."""

    searched: dict[Path, Source]
    baseline: tuple[Path, Source]

    @property
    def all(self) -> dict[Path, Source]:
        """The searched ones first."""
        return dict([*self.searched.items(), self.baseline])

    def of(self, name: str) -> tuple[Path, Source]:
        """The text that a diagnostic would call so."""
        return next((path, source) for path, source in self.all.items() if source.name == name)


def read_texts(plans: Sequence[Name], baseline: Name | None) -> Texts:
    """Files, or names of plans that come with ssdsl; without any, all of the examples. Raises PlanError where one
    cannot be read, or does not parse."""
    searched = dict(_read(name) for name in plans or example_plans())
    return Texts(searched, _read(baseline or (plans[0] if plans else ALONE)))


def _read(name: Name) -> tuple[Path, Source]:
    path = plan_path(os.fspath(name))
    source = read_source(path)
    parse(source)
    return path, source
