"""The texts of a search: the named plans, or all examples of ssdsl, and the baseline that they are compared with."""

import os
from collections.abc import Sequence
from pathlib import Path

from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import example_plans, plan_path
from ssdsl.record import Record
from ssdsl.text.source import Source

ALONE = "data_parallel"  # the baseline where no plan is named
Name = str | os.PathLike[str]


class Texts(Record):
    """The texts by file, without duplicates: those that are searched, and the baseline."""

    searched: dict[Path, Source]
    baseline: tuple[Path, Source]

    @property
    def all(self) -> dict[Path, Source]:
        """All texts, the searched ones first."""
        return dict([*self.searched.items(), self.baseline])

    def has(self, path: Path) -> bool:
        """Whether a file is one of the searched texts, or a copy: what a search writes that finds no number."""
        if path.resolve() in map(Path.resolve, self.searched):
            return True
        return path.is_file() and path.read_bytes() in (source.text.encode() for source in self.searched.values())

    def of(self, name: str) -> tuple[Path, Source]:
        """The text with this name in diagnostics."""
        return next((path, source) for path, source in self.all.items() if source.name == name)


def read_texts(plans: Sequence[Name], baseline: Name | None) -> Texts:
    """The texts of files, or of plans that come with ssdsl by name; without any, of all examples. Raises PlanError if
    one cannot be read, or does not parse."""
    searched = dict(_read(name) for name in plans or example_plans())
    return Texts(searched, _read(baseline or (plans[0] if plans else ALONE)))


def _read(name: Name) -> tuple[Path, Source]:
    path = plan_path(os.fspath(name))
    source = read_source(path)
    parse(source)
    return path, source
