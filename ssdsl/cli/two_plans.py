"""Two plans for one model, or one plan under two settings: what `ssdsl diff` and `ssdsl reshard` compare."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import complete_plan, settings
from ssdsl.cli.pipeline import LoadedPlan, load, parsed
from ssdsl.record import Record, replace

After = Annotated[
    str | None,
    typer.Argument(
        metavar="AFTER", help="The plan to compare it with.", show_default="the same", autocompletion=complete_plan
    ),
]
And = Annotated[
    list[str],
    options.numbers_option(
        "--and",
        "-a",
        "NAME=N",
        "Set a param of the second plan only: --set T=2 --and T=4 compares a plan with itself. Repeatable.",
    ),
]


class TwoPlans(Record):
    """Both plans, read for one model, with their settings, and the names under which tables show them."""

    plans: tuple[LoadedPlan, LoadedPlan]
    settings: tuple[dict[str, int], dict[str, int]]
    names: tuple[str, str]


def two_plans(
    before: str, after: str | None, model: str, set_: list[str], and_: list[str], *, meta: bool, precision: str | None
) -> TwoPlans:
    """Reads both; a param that only one of them has is set for that one. Without `after` there must be settings for a
    second time."""
    overrides, later = settings(set_), settings(and_, "--and")
    if after is None and not later:
        raise typer.BadParameter("name a second plan, or its settings, as in --and T=4", param_hint="'AFTER'")
    first = load(before, model, meta=meta, precision=precision)
    second = _of_same_model(first, after or before)
    both = first, second
    own = _known(first, overrides, *both), {**_known(second, overrides, *both), **later}
    return TwoPlans(both, own, (before, after) if after is not None else _called(first, overrides, later))


def _called(loaded: LoadedPlan, before: dict[str, int], later: dict[str, int]) -> tuple[str, str]:
    """The names of two settings of a plan: their different params, as `T=2` and `T=4`."""
    from ssdsl.lang.parse import parse
    from ssdsl.plan.declarations import params

    values = {p.name: p.default for p in params(parse(loaded.source))} | before
    different = [name for name in later if values.get(name) != later[name]] or list(later)
    first, second = (" ".join(f"{n}={v[n]}" for n in different if n in v) for v in (values, values | later))
    return (first, second) if first != second else (f"{first} again", second)


def _of_same_model(loaded: LoadedPlan, plan: str) -> LoadedPlan:
    path, source = parsed(plan)
    return replace(loaded, path=path, source=source)


def _known(loaded: LoadedPlan, overrides: dict[str, int], *both: LoadedPlan) -> dict[str, int]:
    """The settings for a plan: all but those of params that only the other one has."""
    from ssdsl.lang.parse import parse

    mine = parse(loaded.source).params
    other = {name for one in both for name in parse(one.source).params if name not in mine}
    return {name: value for name, value in overrides.items() if name not in other}
