"""The plans of a matrix, and the settings under which each is tried."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import example_plans
from ssdsl.matrix.cell import PlanText
from ssdsl.plan.declarations import asked_settings
from ssdsl.text.source import Source


def plan_texts(named: Sequence[tuple[str, Path, Source]]) -> list[PlanText]:
    """The plans that the user names, by these names; without any, all that come with ssdsl but those of papers."""
    shipped = named or [(path.stem, path, read_source(path)) for path in example_plans()]
    return [PlanText(name, source, path.parent) for name, path, source in shipped]


def settings_of(plan: PlanText, asked: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """The settings of a plan: the numbers that are asked for of its params, and those that it lists for the others. Of
    a plan without either, its defaults. Raises PlanError."""
    known = {*plan.script.numbers}
    own = {name: numbers for name, numbers in asked.items() if name in known}
    empty = True
    for setting in asked_settings(plan.script, own):
        empty = False
        yield setting
    if empty:
        yield {}
