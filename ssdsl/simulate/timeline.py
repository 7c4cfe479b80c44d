"""The timeline of a step, simulated or measured: the events of every device, and its memory over time.

All views of time (the terminal's chart, Chrome's trace, the HTML page) are drawn from it.
"""

from enum import StrEnum

from ssdsl.ir.program import Traced
from ssdsl.record import Record
from ssdsl.simulate.exposed import Why


class Stream(StrEnum):
    """The streams of a device, which run at the same time: computing, with the communication that it waits for; and
    transfers in the background."""

    COMPUTE = "compute"
    TRANSFER = "transfer"


class EventKind(StrEnum):
    """The kind of an event. A plan with a backward in halves has `dgrad` and `wgrad` where others have `bwd`; what runs
    again in a task of its own has `again` before."""

    FORWARD = "fwd"
    BACKWARD = "bwd"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    TRANSFER = "transfer"
    REDUCE = "reduce"  # of gradients, at the end of the step
    OPTIMIZER = "optimizer"
    EXPOSED = "exposed"  # a wait for a message or for weights, with nothing else to run
    GATHER = "gather"  # of weights that other devices have updated, while tasks run
    AGAIN = "again"


class Event(Record):
    """One activity of a row's devices, in seconds from the start of the step.

    `name` says what runs ("h.0 ... h.5"); `function` is the number of a task's function, as two functions may have one
    name. `coordinate` are its indices in time, `communication_s` is the time in it that is exposed communication.
    `lines` are the lines of the plan that made it, from 1; `from_plan` is false if the plan left its place in the order
    to the compiler.
    """

    row: int
    stream: Stream
    kind: EventKind
    start_s: float
    end_s: float
    name: str
    coordinate: tuple[tuple[str, int], ...] = ()
    communication_s: float = 0.0
    size_bytes: int = 0  # the bytes of a transfer, on one device
    lines: tuple[int, ...] = ()
    from_plan: bool = True
    function: int | None = None


MEMORY_PARTS = ("weights", "gradients", "optimizer", "inputs", "activations", "transfers", "scratch")  # from below


class TransferArrow(Record):
    """A dependency between rows: the numbers of a transfer's event where it is sent and where it arrives."""

    source: int
    target: int


class Memory(Record):
    """The memory of one device of a row over the step, as a step function: `size_bytes[k]` holds from `times_s[k]` on.

    `peak_parts` are the bytes of each part of the peak ("weights", "activations", ...), `changes` those of a part that
    are allocated at a time, or freed if negative, by time. `host_bytes` are those in the memory of its host.
    """

    row: int
    times_s: tuple[float, ...]
    size_bytes: tuple[int, ...]
    peak_s: float
    peak_bytes: int
    peak_parts: tuple[tuple[str, int], ...]
    capacity_bytes: int | None = None
    host_bytes: int = 0
    changes: tuple[tuple[float, int, str], ...] = ()


class MessageWait(Record):
    """The seconds for which the devices of a row wait for a message of the program, or for its gradient: one that
    arrives here, or at a device for which they wait."""

    row: int
    message: int
    gradient: bool
    time_s: float


class ExposedWait(Record):
    """The seconds for which a device of a row waits for the communication of an action, with nothing else to run, and
    why it is not hidden. Of a task or a message, all coordinates are one, and the action has none."""

    row: int
    action: Traced
    why: Why
    time_s: float


class CommunicationTime(Record):
    """What the links of a device of a row carry for it, in seconds from the start of the step: kinds of collectives, or
    `send`, each with its share of the time, and the number of devices among which it goes."""

    row: int
    start_s: float
    end_s: float
    parts: tuple[tuple[str, float, int], ...]


class TimelineRow(Record):
    """Devices that do the same at the same time: the name of their role, and their ranks."""

    name: str
    ranks: tuple[int, ...]
    device: str = ""  # the kind of device


class Timeline(Record):
    """The timeline of one step. `plan` and `text` are the name and the text of the plan's file, `params` the values of
    its params. Events are sorted by start. `bubble` is the report's, if it is known, and so are the `waits` for
    messages, the `exposed` communication, and all `communication`, with what is hidden. Of a measured step it is not
    known."""

    title: str
    plan: str
    text: str
    step_s: float
    rows: tuple[TimelineRow, ...]
    events: tuple[Event, ...]
    flows: tuple[TransferArrow, ...] = ()
    memory: tuple[Memory, ...] = ()
    params: tuple[tuple[str, int], ...] = ()
    bubble: float | None = None
    waits: tuple[MessageWait, ...] = ()
    exposed: tuple[ExposedWait, ...] = ()
    communication: tuple[CommunicationTime, ...] = ()
