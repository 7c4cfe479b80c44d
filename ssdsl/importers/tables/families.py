"""The schedules of the standard library as tables, and the one that a table is."""

from collections.abc import Iterator

from ssdsl.exporters.table import PipelineTable
from ssdsl.importers.widths import Net, Widths, plan_of
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source


class StdlibSchedule(Record):
    """A function of `stdlib/pipeline.ssp`: how many stages it has on a device, 0 for any number, and whether they go
    down the devices and back."""

    name: str
    chunks: int = 1
    v_shaped: bool = False


SCHEDULES = (
    StdlibSchedule("one_f_one_b"),
    StdlibSchedule("gpipe"),
    StdlibSchedule("interleaved", 0),
    StdlibSchedule("zb_h1"),
    StdlibSchedule("zb_h2"),
    StdlibSchedule("zb_v", 2, True),
    StdlibSchedule("dual_pipe_v", 2, True),
    StdlibSchedule("v_half", 2, True),
    StdlibSchedule("v_min", 2, True),
    StdlibSchedule("eager_one_f_one_b"),
    StdlibSchedule("gpipe", 0),
    StdlibSchedule("gpipe", 2, True),
)
LAYERS = "parts.*"


def family(table: PipelineTable) -> Widths | None:
    """The widths of the schedule whose order a table has; None if it is none of the standard library's."""
    return next((widths for widths in _candidates(table) if _has_order(widths, table)), None)


def _candidates(table: PipelineTable) -> Iterator[Widths]:
    """The schedules that have the table's stages where it has them."""
    devices, stages = len(table.rows), table.stages
    if devices < 2 or stages % devices:
        return
    chunks = stages // devices
    looped = table.rank == tuple(s % devices for s in range(stages))
    shaped = chunks == 2 and table.rank == tuple(min(s, stages - 1 - s) for s in range(stages))
    for schedule in SCHEDULES:
        if (shaped if schedule.v_shaped else looped) and schedule.chunks in (0, chunks):
            yield Widths(
                stages=devices, chunks=chunks, micro=table.micro, schedule=schedule.name, v_shaped=schedule.v_shaped
            )


def _has_order(widths: Widths, table: PipelineTable) -> bool:
    try:
        return table_of_widths(widths).halved.rows == table.halved.rows
    except PlanError:  # a schedule that does not take these numbers
        return False


def table_of_widths(widths: Widths) -> PipelineTable:
    """The table of a pipeline's plan. Raises PlanError for numbers that the schedule does not take."""
    from ssdsl.compile import compile_source
    from ssdsl.exporters.pipeline_table import table_of
    from ssdsl.importers.tables.chain import chain

    stages = widths.stages * widths.chunks
    cut = replace(widths, before=tuple(range(1, stages)))
    text = plan_of(cut, Net(layers=LAYERS), ()).text
    compiled = compile_source(Source(f"{widths.schedule}.ssp", text), chain(stages, widths.micro), {}, None)
    return table_of(compiled.program)
