"""`ssdsl diff`: the changes from one plan to another in time, memory and bytes."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster
from ssdsl.cli.options import complete_plan, settings
from ssdsl.cli.pipeline import LoadedPlan, compiled, load, parsed, simulated, state_of
from ssdsl.cli.terminal import print_json, print_views
from ssdsl.kernel_choice import EAGER
from ssdsl.record import replace

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


def diff(
    before: options.Plan,
    model: options.Model,
    set_: options.Set,
    and_: And,
    after: After = None,
    cluster: options.Cluster = "laptop",
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    master_weights: options.Masters = True,
    fp32_grads: options.Fp32Grads = False,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Compare two plans for a model on a cluster, or one plan under two settings: step time, bubble, memory, traffic.

    A param that only one of them has is set for that one.
    """
    overrides, later = settings(set_), settings(and_, "--and")
    if after is None and not later:
        raise typer.BadParameter("name a second plan, or its settings, as in --and T=4", param_hint="'AFTER'")
    chosen = chosen_cluster(cluster)
    first = load(before, model, meta=meta, precision=precision)
    second = of_same_model(first, after or before)
    from ssdsl.show.tables.difference import difference_json, difference_views

    before_, after_ = (
        known_settings(first, overrides, first, second),
        {**known_settings(second, overrides, first, second), **later},
    )
    earlier = compiled(first, before_, cluster=chosen, kernels=kernels)
    changed = compiled(second, after_, cluster=chosen, kernels=kernels)
    was, now = (
        simulated(program, chosen, state=state_of(master_weights, fp32_grads)) for program in (earlier, changed)
    )
    names = (before, after) if after is not None else names_of(first, overrides, later)
    if json:
        print_json(difference_json(was, now, names))
        return
    print_views(*difference_views(was, now, names))


def names_of(loaded: LoadedPlan, before: dict[str, int], later: dict[str, int]) -> tuple[str, str]:
    """The names of two settings of a plan: their different params, as `T=2` and `T=4`."""
    from ssdsl.lang.parse import parse
    from ssdsl.plan.declarations import params

    values = {p.name: p.default for p in params(parse(loaded.source))} | before
    different = [name for name in later if values.get(name) != later[name]] or list(later)
    first, second = (" ".join(f"{n}={v[n]}" for n in different if n in v) for v in (values, values | later))
    return (first, second) if first != second else (f"{first} again", second)


def of_same_model(loaded: LoadedPlan, plan: str) -> LoadedPlan:
    path, source = parsed(plan)
    return replace(loaded, path=path, source=source)


def known_settings(loaded: LoadedPlan, overrides: dict[str, int], *both: LoadedPlan) -> dict[str, int]:
    """The settings for a plan: all but those of params that only the other one has."""
    from ssdsl.lang.parse import parse

    mine = parse(loaded.source).params
    other = {name for one in both for name in parse(one.source).params if name not in mine}
    return {name: value for name, value in overrides.items() if name not in other}
