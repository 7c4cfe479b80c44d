"""Another order for a pipeline: what a plan calls of the standard library, in place of it two numbers a stage.

The numbers are found on a model of the pipeline (`solve/order.py`), whose times and memory are those of a simulated
step; the plans that come of it are simulated and proved like any other.
"""

from statistics import median

from ssdsl.lang import nodes
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import Event, Kind, Memory
from ssdsl.sketch.schedules import called, with_import
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.sketch.write import with_answer
from ssdsl.solve.order import Schedule, order
from ssdsl.solve.pipeline import Pipeline

PLAIN = ("gpipe", "one_f_one_b", "eager_one_f_one_b", "zb_h1", "zb_h2")  # of one stage a device
SCHEDULE = "schedule"
KEPT = 1.0  # of a micro-batch's memory, until the gradients of weights are there
EFFORT = 1_500_000  # tasks that the solver places


def is_open(sketch: Sketch) -> bool:
    """Whether the plan calls a schedule of one stage a device, as a statement of its own."""
    return _call(sketch.script) is not None


def with_order(sketch: Sketch, values: Values, schedule: Schedule) -> Sketch:
    """The sketch with these numbers in place of its schedule. Its params are not open any more: the numbers are for
    them."""
    own = _call(sketch.script)
    assert own is not None
    name, call = own
    ahead, late = (", ".join(map(str, numbers)) for numbers in (schedule.ahead, schedule.late))
    text = with_answer(sketch.source.text, call, SCHEDULE, f"ahead = [{ahead}], late = [{late}]")
    return sketch.answered(with_import(sketch.script, text, name, SCHEDULE), values)


def schedule_of(report: Report, room: float, share: float) -> Schedule | None:
    """An order for the pipeline of a simulated step whose stages run one micro-batch after another; the activations of
    each may take `room` times what is left for them of this share of the memory, by what they take in that step."""
    rows = [[e for e in report.timeline.events if e.row == n] for n in range(len(report.devices))]
    micro_batches = min((len({e.coordinate for e in row if e.kind is Kind.FORWARD}) for row in rows), default=0)
    times = [_times(row, micro_batches) for row in rows]
    if len(rows) < 2 or micro_batches < 2 or any(not all(t) for t in times):
        return None
    forward, backward, weights = zip(*times, strict=True)
    memory = [_room(report.timeline.memory[n], micro_batches, len(rows) - n, share) for n in range(len(rows))]
    limit = tuple(max(1.0, room * most) for most in memory)
    pipeline = Pipeline(forward, backward, weights, _transfer(report), micro_batches, KEPT, limit)
    *_, found = (None, *order(pipeline, EFFORT))
    return found


def _call(script: nodes.Script) -> tuple[str, nodes.Call] | None:
    """The call of a schedule of one stage a device, and its name."""
    for name, call in called(script):
        plain = len(call.arguments) == 2 and not any(isinstance(a, nodes.Keyed) for a in call.arguments)
        if name in PLAIN and plain:
            return name, call
    return None


def _times(row: list[Event], micro_batches: int) -> tuple[float, float, float]:
    """Seconds of a micro-batch's forward, of its backward and of its gradients of weights; where the plan does not tell
    these apart, halves of the backward."""

    def each(kind: Kind) -> float:
        return sum(e.end_s - e.start_s for e in row if e.kind is kind) / max(1, micro_batches)

    half = each(Kind.BACKWARD) / 2
    return each(Kind.FORWARD), each(Kind.DGRAD) + half, each(Kind.WGRAD) + half


def _transfer(report: Report) -> float:
    seconds = [e.end_s - e.start_s for e in report.timeline.events if e.kind is Kind.TRANSFER]
    return median(seconds) if seconds else 0.0


def _room(memory: Memory, micro_batches: int, in_flight: int, share: float) -> float:
    """How many micro-batches a stage has room for, by what the peak of so many in flight is made of."""
    if memory.capacity_bytes is None:
        return float(micro_batches)
    parts = dict(memory.peak_parts)
    each = parts.get("activations", 0) / max(1, min(in_flight, micro_batches))
    left = share * memory.capacity_bytes - (memory.peak_bytes - parts.get("activations", 0))
    return left / each if each else float(micro_batches)
