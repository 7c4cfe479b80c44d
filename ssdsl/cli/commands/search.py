"""`ssdsl search`: fills in what plans leave open, for a model on a cluster."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.compile import put
from ssdsl.cli.commands.sweep import Values, numbers_of
from ssdsl.cli.options import complete_plan, devices_of
from ssdsl.cli.pictures import save_page
from ssdsl.cli.pipeline import LoadedPlan, captured, compiled, state_of
from ssdsl.cli.terminal import print_json, print_text, print_views, results, show_diagnostics, talk
from ssdsl.cli.training import check_program_folder
from ssdsl.interrupts import forget_interrupt
from ssdsl.kernel_choice import EAGER
from ssdsl.lang.save import FileMark, check_file
from ssdsl.sketch.by import By
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from rich.console import Console

    from ssdsl.show.view import View
    from ssdsl.sketch.result import SearchResult, Tried
    from ssdsl.sketch.search import Search
    from ssdsl.sketch.sketch import Sketch

Plans = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PLAN]...",
        help="Plans whose params are searched: files, or names of `ssdsl plans`. Without, all that come with ssdsl.",
        autocompletion=complete_plan,
        show_default=False,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="PLAN", help="Compare with this plan at its defaults.", show_default="the first plan, or data_parallel"
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="N|A..B",
        help="The number of devices of a plan; with a range, the search is for the best use of each device.",
        show_default="all of the cluster",
    ),
]
Memory = Annotated[float, typer.Option(min=1e-6, max=1.0, help="The share of each device's memory that is used.")]
Ranked = Annotated[
    By, typer.Option("--by", help="Rank plans by their use of devices, or by what a step costs (a cluster's [price]).")
]
Top = Annotated[int, typer.Option(min=1, help="The number of best plans that are shown.")]
Tries = Annotated[int, typer.Option(min=1, help="The most plans that are simulated.")]
Seconds = Annotated[float | None, typer.Option(min=1e-3, help="The longest time to search.", show_default="no end")]
Orders = Annotated[bool, typer.Option("--orders/--no-orders", help="Seek other cuts and other orders for pipelines.")]
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the best plan.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Save a page with a plot of time against memory.")
]
Explain = Annotated[
    int | None,
    typer.Option(metavar="LINE", help="Show what is known of what is chosen in this line of the first plan."),
]
Compile = Annotated[str | None, typer.Option("--compile", metavar="DIR", help="Write the best plan's program.")]


def search(
    model: options.Model,
    set_: Values,
    plans: Plans = None,
    baseline: Baseline = None,
    cluster: options.Cluster = "laptop",
    costs: options.Costs = None,
    devices: Devices = None,
    memory: Memory = 1.0,
    by: Ranked = By.DEVICES,
    top: Top = 5,
    tries: Tries = 100,
    seconds: Seconds = None,
    orders: Orders = True,
    out: Out = None,
    compile_: Compile = None,
    html: Html = None,
    explain: Explain = None,
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    master_weights: options.Masters = True,
    fp32_grads: options.Fp32Grads = False,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Search what plans leave open: widths, micro-batches, and params that list what may be tried.

    Settings are ranked by simulated steps; those that are shown are proved. Ctrl-C ends with the best so far. Exits
    with 1 if no plan fits.
    """
    from ssdsl.cli.commands.clusters import chosen_cluster
    from ssdsl.sketch.texts import read_texts

    check_file(html, FileMark.PAGE)
    if compile_ is not None:
        check_program_folder(Path(compile_))
        options.check_runnable(kernels)
    on = chosen_cluster(cluster)
    wanted = devices_of(devices or str(on.size), on)
    texts = read_texts(plans or (), baseline)
    if out is not None and not texts.has(Path(out)):
        check_file(out, FileMark.PLAN)
    held = captured(model, meta=meta, precision=precision)
    graph = held.graph
    from ssdsl.show.tables.search import pareto_text, search_json, search_views
    from ssdsl.simulate.profile.read_costs import read_whole_costs
    from ssdsl.sketch.answers.write import copies_for
    from ssdsl.sketch.search import search_of

    state, times = state_of(master_weights, fp32_grads), read_whole_costs(Path(costs)) if costs is not None else None
    work = search_of(graph, on, texts, wanted, numbers_of(set_), state, memory, times, kernels.kernels, by)
    if out is not None:
        for sketch in work.sketches:
            copies_for(sketch, Path(out).parent)  # what would keep a plan from being saved is said before the search
    explained = None if explain is None else _explained_name(work.sketches[0], explain)
    found = work.proved(_searched(work, tries, seconds, orders, top), top)
    best = found.best
    text = None if out is None or best is None else _saved(out, found, best)
    title = f"search for {graph.name} on {on.name}"
    if json:
        show_diagnostics(tuple(d for sketch in work.sketches for d in sketch.elsewhere))
        print_json(search_json(found, graph, on, top))
    else:
        print_views(*search_views(title, found, graph, on, top))
        print_text(pareto_text(found, results.width) + "\n")
        if explained is not None:
            print_views(*_explained(work, found, explained))
    if html is not None:
        from ssdsl.show.tables.sweep_html import sweep_html

        save_page(html, sweep_html(title, tuple(t.setting for t in (found.baseline, *found.tried))))
    if best is None:
        raise typer.Exit(1)
    path, source = texts.of(best.sketch.file)
    if text is not None:
        _print_changes(best.sketch.source.name, source.text, out, text, talk if json else results)
    if compile_ is not None:
        loaded = LoadedPlan(path, best.sketch.source, held)
        put(loaded, compiled(loaded, best.setting.params, cluster=on, kernels=kernels), compile_, (), on, kernels.mode)


def _explained_name(sketch: "Sketch", line: int) -> str:
    """The name of what a search chooses in a line of a plan. Raises PlanError."""
    from ssdsl.show.tables.explain import names_by_line
    from ssdsl.sketch.errors import NothingOpen

    is_open = {p.name for p in sketch.open}
    named = {at: name for at, name in names_by_line(sketch.script).items() if name in is_open}
    if line not in named:
        raise PlanError(NothingOpen(None, sketch.name, line, tuple(named.items())))
    return named[line]


def _explained(work: "Search", found: "SearchResult", name: str) -> "Iterator[View]":
    """The tables behind a choice: of its numbers in all turns, and turn by turn."""
    from ssdsl.show.tables.explain import effects_view, numbers_view

    yield numbers_view(found, work.sketches[0], name)
    known = work.opened_choices(found)
    if known is not None and name in known.turns:
        yield effects_view(name, known)


def _searched(work: "Search", tries: int, seconds: float | None, orders: bool, top: int = 0) -> "SearchResult":
    """The result of the search. On a terminal the best so far is shown; Ctrl-C ends the search."""
    last: SearchResult | None = None
    with _progress() as say:
        try:
            for last in work.results(tries, seconds or float("inf"), orders, top):
                say(last)
        except KeyboardInterrupt:
            if last is None:
                raise
            forget_interrupt()
            talk.print("stopped: no plan fits so far" if last.best is None else "stopped: this is the best so far")
    assert last is not None, "a search gives the baseline first"
    return last


@contextmanager
def _progress() -> "Iterator[Callable[[SearchResult], None]]":
    if not talk.is_terminal:
        yield lambda found: None
        return
    with talk.status("reading the plans") as status:

        def say(found: "SearchResult") -> None:
            from ssdsl.show.view import seconds

            best = found.best
            words = "no plan fits yet"
            if best is not None:
                words = f"best {best.sketch.name} {best.setting.words}: {seconds(best.report.step_s)}"
            status.update(f"{len(found.tried)} of {found.settings:,} simulated; {words}")

        yield say


def _saved(file: str, found: "SearchResult", best: "Tried") -> str:
    """Saves the best plan; the text that was saved."""
    from ssdsl.sketch.answers.write import save_plan, written
    from ssdsl.sketch.reasons import notes

    text = written(best.sketch, best.setting.params, notes(found, best))
    save_plan(best.sketch, text, file)
    return text


def _print_changes(name: str, before: str, file: str | None, text: str, console: "Console") -> None:
    """Prints how a saved plan differs from the original."""
    for line in difflib.unified_diff(before.splitlines(), text.splitlines(), name, file or "", lineterm="", n=1):
        console.print(line, markup=False, soft_wrap=True)
