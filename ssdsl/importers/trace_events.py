"""The events of a trace of PyTorch's profiler (`export_chrome_trace`): which call made which, and the seconds of each.

On a processor a call takes the time between its begin and its end. On a GPU it takes the time of the kernels that it
launched: a launch and its kernel have the same `correlation`. Calls of one thread are nested in time.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssdsl.importers.errors import TraceUnreadable
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
GZIP = b"\x1f\x8b"
RECORD_AGAIN = "export it anew: `profiler.export_chrome_trace(file)` after the `with` block has ended"


@dataclass(slots=True, eq=False)
class TraceEvent:
    """A call: its name, its begin and how long it took, in microseconds, and the calls inside of it. `launched` are the
    kernels that it launched, and no call inside of it. `back_us`: of the backward of what it made."""

    name: str
    category: str
    start: float
    duration_us: float
    args: dict[str, Any]
    parent: "TraceEvent | None" = None
    inside: list["TraceEvent"] = field(default_factory=list)
    launched: list["TraceEvent"] = field(default_factory=list)
    back_us: float | None = None

    @property
    def end(self) -> float:
        return self.start + self.duration_us

    @property
    def device_us(self) -> float:
        """The time of all kernels that it launched, and that calls inside of it did."""
        own = sum(kernel.duration_us for kernel in self.launched)
        return own + sum(event.device_us for event in self.inside)

    def ancestors(self) -> Iterator["TraceEvent"]:
        """The calls around it, the nearest first."""
        event = self.parent
        while event is not None:
            yield event
            event = event.parent

    def kernels(self) -> Iterator["TraceEvent"]:
        """What it launched, and what calls inside of it did."""
        yield from self.launched
        for event in self.inside:
            yield from event.kernels()


class TraceFile(Record):
    """What a trace has: `threads` are the outermost calls of each thread, in time; `lost` are kernels whose call is
    unknown; `others` the number of events of other categories."""

    facts: dict[str, Any]
    threads: tuple[tuple[TraceEvent, ...], ...]
    kernels: int
    lost: tuple[TraceEvent, ...]
    others: dict[str, int]

    @property
    def is_gpu(self) -> bool:
        """Whether kernels of a GPU were recorded."""
        return self.kernels > 0

    def calls(self) -> Iterator[TraceEvent]:
        """All calls, each before those inside of it."""
        for thread in self.threads:
            stack = [*reversed(thread)]
            while stack:
                yield (event := stack.pop())
                stack += reversed(event.inside)


def trace_of(name: str, data: bytes) -> TraceFile:
    """The events of a trace's file, which may be compressed. Raises PlanError if it is none."""
    document = _document(name, data)
    facts = document if isinstance(document, dict) else {}
    events = facts.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise _wrong(name, "it has no list `traceEvents`", "give a file of torch.profiler's export_chrome_trace")
    threads, kernels, others = dict[tuple[Any, Any], list[TraceEvent]](), list[TraceEvent](), dict[str, int]()
    for event in events:
        category = str(event.get("cat", event.get("ph", "")))
        if event.get("ph") == "X" and category.lower() in (*ON_HOST, "operator", *ON_DEVICE):
            _sort_in(name, event, category.lower(), threads, kernels)
        else:
            words = {"M": "metadata", "i": "instant"}.get(category, category)
            others[words] = others.get(words, 0) + 1
    if not threads:
        change = "record with ProfilerActivity.CPU, and with `repeat=1` in its schedule, so that it keeps what it has"
        raise _wrong(name, "it has no calls of PyTorch's operators", change)
    roots = tuple(tuple(_nested(found)) for found in threads.values())
    lost = tuple(_linked(roots, kernels))
    facts = {key: value for key, value in facts.items() if key != "traceEvents"}
    return TraceFile(facts, roots, len(kernels), lost, others)


def _sort_in(
    name: str,
    event: dict[str, Any],
    category: str,
    threads: dict[tuple[Any, Any], list[TraceEvent]],
    kernels: list[TraceEvent],
) -> None:
    try:
        start, length = float(event["ts"]), float(event.get("dur", 0.0))
        args = event.get("args") or {}
        made = TraceEvent(str(event["name"]), "cpu_op" if category == "operator" else category, start, length, args)
    except (KeyError, TypeError, ValueError):
        raise _wrong(name, f"an event has no time: {json.dumps(event)[:80]}", RECORD_AGAIN) from None
    if category in ON_DEVICE:
        kernels.append(made)
    else:
        threads.setdefault((event.get("pid"), event.get("tid")), []).append(made)


def _nested(events: list[TraceEvent]) -> Iterator[TraceEvent]:
    """Yields the outermost calls of a thread, with those inside of them."""
    events.sort(key=lambda e: (e.start, -e.end))
    stack: list[TraceEvent] = []
    for event in events:
        while stack and event.start >= stack[-1].end:
            stack.pop()
        if stack:
            event.parent = stack[-1]
            stack[-1].inside.append(event)
        else:
            yield event
        stack.append(event)


def _linked(threads: Sequence[Sequence[TraceEvent]], kernels: Sequence[TraceEvent]) -> Iterator[TraceEvent]:
    """Gives kernels to the calls that launched them; yields those whose call is unknown."""
    launches: dict[Any, TraceEvent] = {}
    by_id: dict[Any, TraceEvent] = {}
    for thread in threads:
        stack = [*thread]
        while stack:
            event = stack.pop()
            stack += event.inside
            if event.category in LAUNCHES and "correlation" in event.args:
                launches[event.args["correlation"]] = event
            elif event.category == "cpu_op" and "External id" in event.args:
                by_id[event.args["External id"]] = event
    for kernel in kernels:
        correlation, number = kernel.args.get("correlation"), kernel.args.get("External id")
        call = launches.get(correlation)
        if call is None and number != correlation:  # old traces give kernels no number of their call
            call = by_id.get(number)
        if call is None:
            yield kernel
        else:
            call.launched.append(kernel)


def _document(name: str, data: bytes) -> Any:
    try:
        text = gzip.decompress(data) if data.startswith(GZIP) else data
    except (OSError, EOFError, zlib.error):
        raise _wrong(name, "it is truncated: the compressed data end too early", "copy it again") from None
    if not text.strip():
        raise _wrong(name, "it is empty", RECORD_AGAIN)
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc.rstrip()) - 1
        if at_end or error.msg.startswith("Unterminated"):
            raise _wrong(name, f"it is truncated: it ends in line {error.lineno}", "copy it again") from None
        raise _wrong(name, f"it is not JSON: {error.msg.lower()} in line {error.lineno}", RECORD_AGAIN) from None
    except RecursionError:
        raise _wrong(name, "it is nested too deeply for a trace", RECORD_AGAIN) from None


def _wrong(name: str, reason: str, change: str) -> PlanError:
    return PlanError(TraceUnreadable(None, name, reason, change))
