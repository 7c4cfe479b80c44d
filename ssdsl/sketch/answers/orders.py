"""Another order for a pipeline: replaces a plan's call of a standard schedule by `schedule` with two numbers per stage.

The numbers are found on a model of the pipeline (`solve/order.py`) with the times and memory of a simulated step. The
resulting plan is simulated and proved like any other.
"""

from collections.abc import Iterator
from statistics import median

from ssdsl.lang import nodes
from ssdsl.plan.plan import Plan
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import Event, EventKind, Memory
from ssdsl.sketch.answers.schedules import SCHEDULE, called, with_import
from ssdsl.sketch.answers.write import with_answer
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.solve.order import Schedule, lighter, order
from ssdsl.solve.pipeline import Pipeline

PLAIN = ("gpipe", "one_f_one_b", "eager_one_f_one_b", "zb_h1", "zb_h2", SCHEDULE)  # of one stage per device
KEPT = 1.0  # the share of a micro-batch's memory that is kept until the gradients of weights
EFFORT = 1_500_000  # tasks that the solver places

Called = tuple[str, nodes.Call]  # a schedule's name and its call


def is_open(sketch: Sketch) -> bool:
    """Whether the plan calls a schedule of one stage per device, anywhere in its own text."""
    return next(_calls(sketch.script), None) is not None


def call_of(sketch: Sketch, plan: Plan) -> Called | None:
    """The call that gives a plan its order: the first one that was carried out, of those in the plan's own text."""
    sites = {site.start for site in plan.order_spans() if site.source == sketch.source}
    return next((each for each in _calls(sketch.script) if each[1].span.start in sites), None)


def with_order(sketch: Sketch, values: Values, own: Called, schedule: Schedule) -> Sketch:
    """The sketch with these numbers in place of this call of a schedule. Its params are no longer open, because the
    numbers depend on them."""
    name, call = own
    ahead, late = (", ".join(map(str, numbers)) for numbers in (schedule.ahead, schedule.late))
    text = with_answer(sketch.source.text, call, SCHEDULE, f"ahead = [{ahead}], late = [{late}]")
    return sketch.answered(with_import(sketch.script, text, name, SCHEDULE), values)


def schedule_of(report: Report, room: float, share: float) -> Schedule | None:
    """An order for the pipeline of a simulated step, of equally fast ones the one with the least memory; None if
    none is faster than that step, or stages do not run one micro-batch after another.

    Activations may take `room` times the memory that this share leaves for them, as measured in that step.
    """
    rows = [[e for e in report.timeline.events if e.row == n] for n in range(len(report.devices))]
    micro_batches = min((len({e.coordinate for e in row if e.kind is EventKind.FORWARD}) for row in rows), default=0)
    times = [_times(row, micro_batches) for row in rows]
    if len(rows) < 2 or micro_batches < 2 or any(not all(t) for t in times):
        return None
    forward, backward, weights = zip(*times, strict=True)
    memory = [_room(report.timeline.memory[n], micro_batches, len(rows) - n, share) for n in range(len(rows))]
    limit = tuple(max(1.0, room * most) for most in memory)
    pipeline = Pipeline(forward, backward, weights, _transfer(report), micro_batches, KEPT, limit)
    better = [found for found in order(pipeline, EFFORT, whole_step=True) if found.step_s < report.step_s]
    return [better[-1], *lighter(pipeline, better[-1], EFFORT)][-1] if better else None


def _calls(script: nodes.Script) -> Iterator[Called]:
    """The calls of schedules of one stage per device."""
    for name, call in called(script, within=True):
        plain = len(call.arguments) == 2 and not any(isinstance(a, nodes.Keyed) for a in call.arguments)
        if name in PLAIN and plain:
            yield name, call


def _times(row: list[Event], micro_batches: int) -> tuple[float, float, float]:
    """The seconds of a micro-batch's forward, backward, and gradients of weights. If the plan does not separate the
    last two, each is half of the backward."""

    def each(kind: EventKind) -> float:
        return sum(e.end_s - e.start_s for e in row if e.kind is kind) / max(1, micro_batches)

    half = each(EventKind.BACKWARD) / 2
    return each(EventKind.FORWARD), each(EventKind.DGRAD) + half, each(EventKind.WGRAD) + half


def _transfer(report: Report) -> float:
    seconds = [e.end_s - e.start_s for e in report.timeline.events if e.kind is EventKind.TRANSFER]
    return median(seconds) if seconds else 0.0


def _room(memory: Memory, micro_batches: int, in_flight: int, share: float) -> float:
    """The number of micro-batches for which a stage has memory, given that its peak has `in_flight` of them."""
    if memory.capacity_bytes is None:
        return float(micro_batches)
    parts = dict(memory.peak_parts)
    each = parts.get("activations", 0) / max(1, min(in_flight, micro_batches))
    left = share * memory.capacity_bytes - (memory.peak_bytes - parts.get("activations", 0))
    return left / each if each else float(micro_batches)
