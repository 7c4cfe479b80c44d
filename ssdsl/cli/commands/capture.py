"""`ssdsl capture`: writes the graph of a model to a file, which other commands take in place of the model."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.pipeline import captured
from ssdsl.cli.terminal import results
from ssdsl.lang.save import FileMark, check_file, save_text
from ssdsl.text.diagnostic import PlanError

Name = Annotated[
    str, typer.Argument(metavar="MODEL", help="As --model takes it.", autocompletion=options.complete_model)
]
Out = Annotated[str, typer.Option("--out", "-o", metavar="FILE.graph", help="The file to write.")]


def capture(
    model: Name,
    out: Out,
    meta: options.Meta = False,
    precision: options.WithPrecision = None,
) -> None:
    """Write the captured graph of a model: a file that needs neither torch nor the model's code.

    `--model FILE.graph` takes it in every command that does not run the model, on any machine.
    """
    from ssdsl.lang.header import GRAPH
    from ssdsl.model.graph_errors import GraphNotData
    from ssdsl.model.graph_file import NotData, write_graph

    if not out.endswith(GRAPH):
        reason = f"commands know a graph by the end of its name: {out}{GRAPH}"
        raise typer.BadParameter(reason, param_hint="'--out'")
    check_file(out, FileMark.GRAPH)
    found = captured(model, meta=meta, precision=precision)
    header = {"model": found.origin or model, "comparison": found.comparison, "precision": found.request.precision}
    try:
        data = write_graph(found.graph, header)
    except NotData as error:
        raise PlanError(GraphNotData(None, model, str(error))) from error
    save_text(out, data)
    count = f"{len(found.graph.operators):,} operators, {len(found.graph.values):,} values"
    results.print(f"{out}: {count}, {len(data):,} bytes", markup=False)
