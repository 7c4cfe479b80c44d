"""`ssdsl simulate`: the time, memory and traffic of a step, without running it."""

from functools import partial
from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster
from ssdsl.cli.options import settings
from ssdsl.cli.pictures import check_traces, is_folder, save_html, save_trace, save_traces
from ssdsl.cli.pipeline import compiled, compiled_for, fits, load, simulated, state_of, tried
from ssdsl.cli.terminal import print_json, print_views
from ssdsl.kernel_choice import EAGER
from ssdsl.lang.save import FileMark, check_file

Trace = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Save Chrome trace events, which https://ui.perfetto.dev opens; into a folder, `DIR/`, a file a rank "
        "in the format of PyTorch's profiler.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Save a page with the timeline, the memory and the plan by line."),
]


def simulate(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    cluster: options.Cluster = "laptop",
    costs: options.Costs = None,
    trace: Trace = None,
    html: Html = None,
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    master_weights: options.Masters = True,
    fp32_grads: options.Fp32Grads = False,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Simulate one training step on a cluster: step time, bubble, memory, traffic.

    Exits with 1 where a device has too little memory for it, and says what would help.

    Compute is a roofline per operator, communication alpha-beta per collective and link. Only roles are simulated, so
    a thousand devices cost what their roles do.
    """
    if trace is not None and trace == html:
        raise typer.BadParameter(f"{trace} is the file of --trace: give another", param_hint="'--html'")
    if trace is not None and is_folder(trace):
        check_traces(trace)
    else:
        check_file(trace, FileMark.TRACE)
    check_file(html, FileMark.PAGE)
    overrides = settings(set_)
    chosen = chosen_cluster(cluster)
    loaded = load(plan, model, meta=meta, precision=precision)
    program = compiled(loaded, overrides, cluster=compiled_for(chosen, costs), kernels=kernels)
    report = simulated(program, chosen, costs, state_of(master_weights, fp32_grads))
    from ssdsl.show.advice.by_line import by_line_view
    from ssdsl.show.advice.hides import exposed_and_what_hides
    from ssdsl.show.tables.report import report_json, report_views
    from ssdsl.show.view import as_json

    lines = by_line_view(program.program, chosen, report)
    trial = partial(tried, loaded, overrides, chosen, costs, state_of(master_weights, fp32_grads), kernels)
    exposed = exposed_and_what_hides(program, chosen, report, trial)
    if trace is not None:
        (save_traces if is_folder(trace) else save_trace)(trace, report.timeline)
    if html is not None:
        save_html(html, report.timeline, lines, exposed)
    if json:
        print_json({**report_json(report), "exposed": as_json(exposed), "lines": as_json(lines)})
    else:
        print_views(*report_views(report), exposed, lines)
    if not fits(program, report):
        raise typer.Exit(1)
