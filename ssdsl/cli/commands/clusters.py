"""`ssdsl clusters`: lists clusters, prints the file of one, measures this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import complete_cluster, refuse_unused
from ssdsl.cli.terminal import print_json, print_views, talk
from ssdsl.lang.save import FileMark, check_file

if TYPE_CHECKING:
    from ssdsl.cluster.cluster import Cluster

clusters = typer.Typer(no_args_is_help=False)
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="One of `ssdsl clusters`, or a TOML file.", autocompletion=complete_cluster),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", metavar="FILE", help="Save there.", show_default="the user's laptop.toml, which is `laptop`"
    ),
]


@clusters.callback(invoke_without_command=True)
def list_(context: typer.Context, json: options.Json = False) -> None:
    """List the clusters that a plan can be simulated for; `measure` adds this machine, `show` prints a file."""
    if context.invoked_subcommand is not None:
        refuse_unused(context, {"json": f"`clusters {context.invoked_subcommand}` has no such option"})
        return
    from ssdsl.cluster.load import known_clusters
    from ssdsl.show.tables.clusters import cluster_json, clusters_view

    found = sorted(map(chosen_cluster, known_clusters()), key=lambda cluster: cluster.size)
    if json:
        print_json([cluster_json(cluster) for cluster in found])
    else:
        print_views(clusters_view(found))


@clusters.command("show")
def show(name: Name) -> None:
    """Print a cluster's file, as a template for your own."""
    from ssdsl.cluster.load import cluster_file, read_cluster_file

    chosen_cluster(name)
    print(read_cluster_file(cluster_file(name), name).text, end="")


@clusters.command("measure")
def measure(out: Out = None) -> None:
    """Measure this machine: matmul and memory rates, the time of an operator, gloo between processes."""
    from ssdsl.cluster import measure as machine
    from ssdsl.cluster.load import measured_laptop
    from ssdsl.run.processes import sigterm_raises
    from ssdsl.show.tables.clusters import measurement_view

    check_file(out, FileMark.CLUSTER)
    talk.print("measuring for about 15 seconds; let the machine do nothing else")
    with sigterm_raises():
        found = machine.measure()
    print_views(measurement_view(found))
    path = Path(out) if out is not None else measured_laptop()
    machine.save(found, path)
    meaning = "use it as --cluster" if out is not None else "from now on this is the cluster `laptop`:"
    talk.print(f"{meaning} {path}", soft_wrap=True, markup=False)


def chosen_cluster(name: str) -> "Cluster":
    """The cluster of a name or path; says on stderr if `laptop` is the user's measurement."""
    from ssdsl.cluster.load import cluster_file, load_cluster, measured_laptop

    if name.partition(",")[0] == "laptop" and (path := cluster_file("laptop")) == measured_laptop():
        talk.print(f"`laptop` is this machine as it was measured: {path}", soft_wrap=True, markup=False)
    return load_cluster(name)


def named_cluster(name: str | None) -> "Cluster | None":
    """The cluster of a name or path; None if none was given."""
    return None if name is None else chosen_cluster(name)
