"""`ssdsl sweep`: simulates a plan under many values of its params, in one table; the model is captured once."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.pictures import save_page
from ssdsl.cli.pipeline import LoadedPlan, check_params, load, parsed, state_of, working
from ssdsl.cli.terminal import print_json, print_views
from ssdsl.kernel_choice import EAGER, KernelChoice
from ssdsl.lang.save import FileMark, check_file
from ssdsl.sketch.setting import Setting
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.analyse.state import StatePrecision

MOST = 1000  # settings
Values = Annotated[
    list[str],
    options.numbers_option(
        "--set",
        "-s",
        "NAME=N,...",
        "Values of a param to try, as in --set T=1,2,4. Repeatable: every value with every other. Other "
        "params take those that stand in the plan: `param T = 2 in [1, 2, 4]`.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Save a page with the table and a plot of time against memory."),
]


def sweep(
    plan: options.Plan,
    model: options.Model,
    set_: Values,
    cluster: options.Cluster = "laptop",
    html: Html = None,
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    master_weights: options.Masters = True,
    fp32_grads: options.Fp32Grads = False,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Simulate a plan under many values of its params: step time, bubble, memory, traffic of each, the best marked.

    What the compiler refuses is a row with its code and its reason. Exits with 1 if no setting fits the cluster.
    """
    check_file(html, FileMark.PAGE)
    chosen = _chosen(plan, numbers_of(set_))
    loaded = load(plan, model, meta=meta, precision=precision)
    state = state_of(master_weights, fp32_grads)
    from ssdsl.show.tables.sweep import sweep_json, sweep_view
    from ssdsl.sketch.setting import best_of

    found = tuple(_tried(loaded, chosen, cluster, state, kernels))
    title = f"{loaded.source.name.rpartition('/')[2]} for {loaded.graph.name} on {cluster}"
    if html is not None:
        from ssdsl.show.tables.sweep_html import sweep_html

        save_page(html, sweep_html(title, found))
    if json:
        print_json(sweep_json(plan, cluster, found))
    else:
        print_views(sweep_view(title, found))
    if best_of(found) is None:
        raise typer.Exit(1)


def _tried(
    loaded: LoadedPlan, chosen: list[dict[str, int]], cluster: str, state: "StatePrecision", kernels: KernelChoice
) -> Iterator[Setting]:
    from ssdsl.cli.commands.clusters import chosen_cluster
    from ssdsl.workspace import Workspace

    on = chosen_cluster(cluster)
    workspace = Workspace(loaded.graph, on, kernels.kernels)
    for params in chosen:
        setting = Setting(params)
        try:
            with working(f"simulating {setting.words}"):
                candidate = workspace.candidate(loaded.source, params, loaded.path.parent)
                workspace.proved(candidate)
                yield Setting(params, workspace.simulate(candidate, on, state=state))
        except PlanError as error:
            yield Setting(params, refused=error.diagnostics[0])


def numbers_of(values: list[str]) -> dict[str, tuple[int, ...]]:
    """`--set T=1,2,4` as the numbers of each param, without duplicates. Raises typer.BadParameter."""
    found: dict[str, list[int]] = {}
    for text in values:
        name, equal, numbers = (part.strip() for part in text.partition("="))
        words = [word.strip() for word in numbers.split(",")]
        if not (equal and name.isidentifier() and all(w.removeprefix("-").isdecimal() for w in words)):
            raise typer.BadParameter(f"`{text}` is not NAME=N,N,..., as in --set T=1,2,4", param_hint="'--set'")
        found.setdefault(name, []).extend(int(w) for w in words)
    return {name: tuple(dict.fromkeys(numbers)) for name, numbers in found.items()}


def _chosen(plan: str, asked: dict[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """The settings that are tried: every combination of the numbers that the user asks for, with every one of those
    that the plan lists for its other params; the last param changes first. Raises PlanError for a param that the plan
    does not have, typer.BadParameter for no settings or too many."""
    from ssdsl.lang.parse import parse
    from ssdsl.plan.declarations import asked_settings

    found = list(islice(asked_settings(parse(parsed(plan)[1]), asked), MOST + 1))
    if not found:
        way = "or write them after a param of the plan, `param T = 2 in [1, 2, 4]`"
        raise typer.BadParameter(f"say which values to try, as in --set T=1,2,4, {way}", param_hint="'--set'")
    if len(found) > MOST:
        raise too_many()
    check_params(plan, found[0])
    return found


def too_many() -> typer.BadParameter:
    """The mistake of asking for more settings than are tried."""
    many = f"these are more than {MOST:,} settings, with those that the plan lists; choose some"
    return typer.BadParameter(many, param_hint="'--set'")
