"""A step on a time axis: what every device does when and what its memory holds, simulated or measured.

All views of time (the terminal's chart, Chrome's trace, the HTML page) are drawn from this.
"""

from dataclasses import dataclass
from enum import StrEnum


class Stream(StrEnum):
    """What goes on at once on a device: its computing, with the communication that this waits for, and transfers."""

    COMPUTE = "compute"
    TRANSFER = "transfer"


class Kind(StrEnum):
    """What an event is. A plan that cuts backward in halves has `dgrad` and `wgrad` where others have `bwd`."""

    FORWARD = "fwd"
    BACKWARD = "bwd"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    TRANSFER = "transfer"
    REDUCE = "reduce"  # of gradients, at the end of the step
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the devices of a row do, in seconds from the start of the step.

    `name` says what runs ("h.0 ... h.5"), `function` is the number of the function that a task is of, which a name need
    not tell from another's; `coordinate` are its indices in time, `communication_s` how much of it is
    collectives. `lines` are the lines of the plan that made it, from 1; `from_plan` is false where the plan left its
    place in the order to the compiler.
    """

    row: int
    stream: Stream
    kind: Kind
    start_s: float
    end_s: float
    name: str
    coordinate: tuple[tuple[str, int], ...] = ()
    communication_s: float = 0.0
    size_bytes: int = 0  # that a transfer carries, of one device
    lines: tuple[int, ...] = ()
    from_plan: bool = True
    function: int | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """A dependency between rows: the numbers of a transfer's event where it is sent and where it arrives."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device of a row over the step, as a step function: `size_bytes[k]` holds from `times_s[k]` on.

    `peak_parts` is what the peak is made of ("weights", "activations", ...), in bytes.
    """

    row: int
    times_s: tuple[float, ...]
    size_bytes: tuple[int, ...]
    peak_s: float
    peak_bytes: int
    peak_parts: tuple[tuple[str, int], ...]
    capacity_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Devices that do the same at the same time: `name` of the role, and the ranks of all of them."""

    name: str
    ranks: tuple[int, ...]
    device: str = ""  # what kind of device


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step. `plan` and `text` are the name and the text of the plan's file, `params` the values of its params;
    events are sorted by start. `bubble` is the report's, where it is known."""

    title: str
    plan: str
    text: str
    step_s: float
    rows: tuple[Row, ...]
    events: tuple[Event, ...]
    flows: tuple[Flow, ...] = ()
    memory: tuple[Memory, ...] = ()
    params: tuple[tuple[str, int], ...] = ()
    bubble: float | None = None
