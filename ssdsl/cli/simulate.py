"""`ssdsl simulate`: time, memory and traffic of a step, before it runs."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pictures import save_html, save_trace
from ssdsl.cli.pipeline import compiled, load, simulated
from ssdsl.cli.terminal import print_json, results

Trace = Annotated[
    str | None,
    typer.Option("--trace", metavar="FILE", help="Save Chrome trace events, which https://ui.perfetto.dev opens."),
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Save a page with the timeline, the memory and the plan.")
]


def simulate(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    cluster: options.Cluster = "laptop",
    costs: options.Costs = None,
    trace: Trace = None,
    html: Html = None,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Simulate one training step on a cluster: step time, bubble, memory, traffic.

    Compute is a roofline per operator, communication alpha-beta per collective and link. Only roles are simulated, so
    a thousand devices cost what their roles do.
    """
    overrides = settings(set_)
    report = simulated(compiled(load(plan, model, meta=meta), overrides, cluster=cluster), cluster, costs)
    if trace is not None:
        save_trace(trace, report.timeline)
    if html is not None:
        save_html(html, report.timeline)
    from ssdsl.show.report import report_json, report_views
    from ssdsl.show.view import table

    if json:
        print_json(report_json(report))
        return
    for view in report_views(report):
        results.print(table(view, results.width))
