"""`ssdsl show PLAN comm`: what the compiler inserted to keep every data dependency."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ssdsl.lower.reshard import Step, StepKind
from ssdsl.lower.schedule import Block, Schedule, Transfer
from ssdsl.show.pattern import starred
from ssdsl.show.view import Column, Kind, View

LOCAL = (StepKind.SLICE, StepKind.KEEP_FIRST)
COLUMNS = (
    Column("communication", style="bold cyan"),
    Column("over", style="green"),
    Column("when"),
    Column("of", Kind.PATH),
    Column("on", fold=True),
    Column("calls", Kind.COUNT),
)


@dataclass(frozen=True, slots=True)
class _Use:
    """One kind of communication with how often each device takes part in it during a step."""

    kind: str
    over: str
    when: str
    of: str
    on: str
    calls: int


def communication_view(schedule: Schedule, every: bool = False) -> View:
    """A row per kind, axes and what is communicated; repeated layers are one row unless `every`."""
    rows: dict[tuple[str, ...], int] = {}
    for use in _uses(schedule):
        of = use.of if every else starred(use.of)
        key = (use.kind, use.over, use.when, of, use.on)
        rows[key] = rows.get(key, 0) + use.calls
    note = () if rows else ("nothing is communicated",)
    notes = ("calls: per step, of one device", *note)
    return View(f"communication of {schedule.graph.name}", COLUMNS, tuple((*k, n) for k, n in rows.items()), notes)


def _uses(schedule: Schedule) -> Iterator[_Use]:
    for block in schedule.blocks:
        for conversion in block.conversions:
            of = _producer(schedule, conversion.value)
            yield from _steps(block, conversion.forward, "forward", of)
            yield from _steps(block, conversion.backward, "backward", of)
    for transfer in schedule.transfers:
        yield from _sends(schedule, transfer)
    for home in schedule.homes:
        if home.partial and schedule.graph.values[home.weight].differentiable:
            kind = "reduce_scatter" if home.weights_over or home.grads_over else "all_reduce"
            yield _Use(kind, ", ".join(home.partial), "gradients", home.weight, str(home.submesh), 1)
        if sum(h.weight == home.weight for h in schedule.homes) > 1:
            yield _Use("all_reduce", "", "gradients, tied", home.weight, str(home.submesh), 1)
        if home.weights_over:
            yield _Use("all_gather", ", ".join(home.weights_over), "weights", home.weight, str(home.submesh), 1)


def _steps(block: Block, steps: tuple[Step, ...], when: str, of: str) -> Iterator[_Use]:
    times = math.prod(t.count for t in block.time)
    for step in steps:
        if step.kind not in LOCAL:
            yield _Use(step.kind.value, ", ".join(step.axes), when, of, str(block.submesh), times)


def _sends(schedule: Schedule, transfer: Transfer) -> Iterator[_Use]:
    times = math.prod(t.count for t in transfer.time)
    of = _producer(schedule, transfer.value)
    yield _Use("send", "", "forward", of, f"{transfer.source} -> {transfer.target}", times)
    if transfer.backward is not None:
        yield _Use("send", "", "backward", of, f"{transfer.target} -> {transfer.source}", times)


def _producer(schedule: Schedule, value: str) -> str:
    """The module and kind of the operator that computes a value, or the value's own name."""
    for operator in schedule.graph.operators:
        if any(o.value == value for o in operator.outputs):
            return f"{operator.path} {operator.kind}".strip()
    return value
