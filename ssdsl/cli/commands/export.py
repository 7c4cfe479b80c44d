"""`ssdsl export`: writes what a compiled plan says in the form of another tool."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import LoadedPlan, compiled, load
from ssdsl.cli.terminal import print_text, talk
from ssdsl.lang.save import FileMark, check_file, save_text

Csv = Annotated[
    bool,
    typer.Option("--csv", help="Write the order of a pipeline as a table that PyTorch's pipelines take, in CSV."),
]
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write a file.", show_default="print it")]


def export(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    csv: Csv = False,
    out: Out = None,
    meta: options.Meta = False,
) -> None:
    """Write what a plan says in the form of another tool.

    What the form has no word for is refused, with the reason.
    """
    if not csv:
        raise typer.BadParameter("say which form to write: --csv")
    check_file(out, FileMark.PIPELINE)
    overrides = settings(set_)
    text = _csv(load(plan, model, meta=meta), overrides)
    if out is None:
        print_text(text)
        return
    save_text(out, text)
    talk.print(f"wrote {out}", markup=False, soft_wrap=True)


def _csv(loaded: LoadedPlan, overrides: dict[str, int]) -> str:
    """The order of a pipeline as a table."""
    from ssdsl.exporters.pipeline_table import table_csv, table_of

    return table_csv(table_of(compiled(loaded, overrides).program))
