"""A table as a file of the language: times of tasks by stage and micro-batch, and a function that orders by them."""

from ssdsl.exporters.table import ActionKind, PipeAction, PipelineTable

NAMES = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.INPUTS: "inputs",
    ActionKind.WEIGHTS: "weights",
}
PHASES = {
    ActionKind.FORWARD: "fwd",
    ActionKind.BACKWARD: "bwd",
    ActionKind.INPUTS: "dgrad",
    ActionKind.WEIGHTS: "wgrad",
}


def table_text(table: PipelineTable, name: str, origin: str) -> str:
    """The text of the file, whose function is called `name`. A task's time is its place in the row of its rank."""
    halves = table.in_halves
    shown = table.halved if halves else table
    kinds = [ActionKind.FORWARD, *([ActionKind.INPUTS, ActionKind.WEIGHTS] if halves else [ActionKind.BACKWARD])]
    times = {action: time for row in shown.rows for time, action in enumerate(row)}
    stages, micro = table.stages, table.micro
    lines = [
        f"# Imported from {origin}: the order of {stages} stages in {micro} micro-batches.",
        "# A number is the place of a task among those of its device; a list has one for each micro-batch.",
        f"let rank = {[*table.rank]}  # the device of each stage",
    ]
    for kind in kinds:
        own = [f"{NAMES[kind]}_{stage}" for stage in range(stages)]
        lines.append("")
        for stage, of in enumerate(own):
            lines.append(f"let {of} = {[times[PipeAction(stage, kind, m)] for m in range(micro)]}")
        lines.append(f"let {NAMES[kind]} = [{', '.join(own)}]")
    lines += [
        "",
        f"def {name}(stage):",
        f'    require len(stage) == {stages}, "the table has {stages} stages"',
        f"    order by clock for s in 0..{stages}, m in 0..{micro}:",
        *(f"        stage[s].{PHASES[kind]}[m = m] at {NAMES[kind]}[s][m]" for kind in kinds),
    ]
    return "\n".join(lines) + "\n"
