"""Schedules of PyTorch that the standard library has no function for, as tables: torch itself says their order."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ssdsl.exporters.table import PipelineTable
from ssdsl.importers.tables.table import read_table
from ssdsl.importers.tables.text import table_text
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source


def table_of_schedule(name: str, devices: int, chunks: int, micro: int) -> tuple[str, str] | str:
    """A file with the order of one of PyTorch's schedules, as its name and text; or the reason why there is none."""
    try:
        rows = torch_rows(name, devices, chunks, micro)
    except (ValueError, AssertionError, ImportError) as error:
        return f"PyTorch refuses it: {error}"
    except (AttributeError, TypeError) as error:  # what its schedules ask of a stage is no public interface
        return f"this version of PyTorch does not say its order: {error}"
    table = read_table(Source(name, "\n".join(",".join(row) for row in rows)))[0]
    function = re.sub(r"\W", "_", f"{name}_table")
    return f"{function}.ssp", table_text(table, function, f"PyTorch's {name}")


def torch_rows(name: str, devices: int, chunks: int, micro: int) -> list[list[str]]:
    """The cells of one of PyTorch's schedules, of each rank."""
    from torch.distributed.pipelining.schedules import get_schedule_class

    kind: Any = get_schedule_class(name)
    rows = []
    for rank in range(devices):
        stages = [_stage(rank, devices, chunks, number) for number in range(chunks)]
        schedule = kind(stages if chunks > 1 or not _is_single(kind) else stages[0], micro, loss_fn=None)
        order = getattr(schedule, "pipeline_order", None) or schedule._get_pipeline_order()
        rows = [[str(action) for action in order[r] if action is not None] for r in range(devices)]
        break
    return rows


def _is_single(kind: Any) -> bool:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    return issubclass(kind, PipelineScheduleSingle)


def _stage(rank: int, devices: int, chunks: int, number: int) -> Any:
    """What a schedule asks a stage when it makes its order."""
    return SimpleNamespace(
        num_stages=devices * chunks,
        group_size=devices,
        group_rank=rank,
        group=None,
        stage_index=rank + number * devices,
        submod=None,
        has_backward=True,
    )


def table_of_file(path: Path, devices: int, micro: int) -> tuple[str, str] | str:
    """A file with the order of a table, as its name and text; or the reason why there is none."""
    try:
        table = read_table(Source(str(path), path.read_text(encoding="utf-8")))[0]
    except PlanError as error:
        return f"{path.name}: {error}"
    if why := _misfit(table, devices, micro):
        return f"{path.name}: {why}"
    function = function_name(path.stem)
    return f"{function}.ssp", table_text(table, function, path.name)


def function_name(stem: str) -> str:
    """The name of the function that a table becomes."""
    plain = re.sub(r"\W", "_", stem)
    return f"{plain if plain[:1].isalpha() else f'pipeline_{plain}'}_table"


def _misfit(table: PipelineTable, devices: int, micro: int) -> str:
    found: Sequence[tuple[str, int, int]] = (
        ("ranks", len(table.rows), devices),
        ("micro-batches", table.micro, micro),
    )
    return "; ".join(f"it is of {own} {what}, not {asked}" for what, own, asked in found if own != asked)
