"""The seconds for which a device waits for transfers, by the statement that makes values travel.

It is the `assign` that places the reader on other devices than the value, in both directions; of a signal the `order`.
"""

from collections.abc import Iterable

from ssdsl.codegen.sites import Origins
from ssdsl.ir.comm import Message, Signal
from ssdsl.ir.program import Program
from ssdsl.simulate.timeline import MessageWait

NAMED = 0.01  # of the step: a transfer that is waited for less is not named in a row of its own


def transfer_waits(program: Program, origins: Origins, waits: Iterable[MessageWait], step_s: float) -> dict[str, float]:
    """The seconds by statement; those of a transfer that holds up much of the step by statement and transfer."""
    found: dict[str, dict[str, float]] = {}
    for wait in waits:
        message = program.messages[wait.message]
        of_statement = found.setdefault(_statement(program, origins, message), {})
        name = _name(origins, message, wait.gradient)
        of_statement[name] = of_statement.get(name, 0.0) + wait.time_s
    rows: dict[str, float] = {}
    for statement, transfers in found.items():
        for name, time_s in transfers.items():
            row = f"{statement or '(no statement)'}; {name}" if time_s >= NAMED * step_s else statement
            rows[row] = rows.get(row, 0.0) + time_s
    return rows


def _statement(program: Program, origins: Origins, message: Message) -> str:
    if isinstance(message, Signal):
        spans = (span for task, spans in program.stated.items() if task.function == message.consumer for span in spans)
        return next(map(origins.said, spans), "")
    ends = (program.functions[number] for number in (message.consumer, message.producer))
    return next(filter(None, map(origins.message, ends)), "")


def _name(origins: Origins, message: Message, gradient: bool) -> str:
    """The words for a transfer: `transfer of h.3 add from gpus[pp = 0] to gpus[pp = 1]`."""
    source, target = message.ends(gradient)
    if isinstance(message, Signal):
        return f"signal from {source} to {target}"
    of = "gradient of " if gradient else ""
    return f"transfer of {of}{origins.value(message.value)} from {source} to {target}"
