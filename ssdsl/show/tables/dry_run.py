"""`ssdsl check --device cuda`: where the host waits for the GPU within a step."""

from ssdsl.run.dry.device import DryEvent
from ssdsl.run.dry.findings import END, Waits
from ssdsl.show.view import Column, ColumnKind, View

WHY = {DryEvent.ROUTES: "to send experts' rows", DryEvent.WAITS: "not needed"}


def waits_view(waits: Waits) -> View:
    """A row for each place."""
    columns = (
        Column("waits", ColumnKind.COUNT),
        Column("for", style="green", key="why"),
        Column("operator", style="bold cyan"),
        Column("in", ColumnKind.PATH),
        Column("model", drop=2),
        Column("plan", drop=1),
    )
    rows = []
    for event, why in WHY.items():
        for found, times in waits.of(event):
            said = "loss and norm" if event is DryEvent.WAITS and found.where == END else why
            where = "the end of the step" if found.where == END else found.where
            rows.append((times, said, found.operator, where, found.model, found.plan.partition(": ")[0]))
    note = "in a step of the device that has most of them; each waits for all that was started"
    return View("the host waits for the GPU", columns, tuple(rows), (note,))
