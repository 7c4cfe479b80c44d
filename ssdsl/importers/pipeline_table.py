"""PyTorch's tables of pipelines: a row for each rank, a cell for each action."""

from pathlib import Path

from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.importers.tables.table import is_table, read_table
from ssdsl.importers.widths import Net, Widths, plan_of
from ssdsl.record import replace
from ssdsl.text.source import Source


def recognises(foreign: Foreign) -> bool:
    """Whether a source is a table of a pipeline."""
    return foreign.path is not None and is_table(foreign.text)


def read(foreign: Foreign) -> Imported:
    """The plan of a table: with a schedule of the standard library where it is one, else with a file beside the plan.
    Raises PlanError for a table whose ranks wait for each other, or that lacks an action."""
    from ssdsl.importers.tables.families import family
    from ssdsl.importers.tables.text import table_text
    from ssdsl.importers.tables.torch_schedules import function_name

    table, cells, silent = read_table(Source(foreign.given, foreign.text))
    path = foreign.path or Path(foreign.given)
    comments = [f"{table.stages} stages on {len(table.rows)} ranks, {table.micro} micro-batches."]
    files = list[tuple[str, str]]()
    widths = family(table)
    if widths is None:
        function = function_name(path.stem)
        widths = Widths(stages=len(table.rows), micro=table.micro, schedule=function, table=f"{function}.ssp")
        files.append((f"{function}.ssp", table_text(table, function, path.name)))
        comments.append("No schedule of the standard library has this order: it is in the file beside.")
    else:
        comments.append(f"Its order is that of `{widths.schedule}`.")
    comments.append("Give it a model: --model gpt, with at least as many layers as stages.")
    lines = plan_of(widths, Net(), tuple(comments))
    said = lines.saying("schedule")
    return Imported(
        "a table of PyTorch's pipelines",
        lines.text,
        tuple(replace(item, becomes=said) for item in cells),
        silent,
        (),
        None,
        tuple(files),
    )
