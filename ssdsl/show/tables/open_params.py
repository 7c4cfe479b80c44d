"""A line that lists what a plan leaves open to a search."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from ssdsl.lang.suggest import counted, joined
from ssdsl.plan.model_index import ModelIndex
from ssdsl.sketch.answers import clocks, cuts, orders, widths
from ssdsl.sketch.sketch import sketch_of
from ssdsl.text.source import Source

MOST = 10_000  # settings that are counted


def open_params(
    source: Source, folder: Path | None, model: ModelIndex, count: int, settings: Mapping[str, int] | None = None
) -> str:
    """`open to ssdsl search: T in 1, 2, 4; M in 1, 2: at most 6 plans on 4 devices; where stages are cut`; empty if no
    param is open. Params that the user has set are not open, as in a search with the same `--set`."""
    devices = range(count, count + 1)
    sketch = sketch_of(source, folder, model, devices, {name: (value,) for name, value in (settings or {}).items()})
    if not sketch.open:
        return ""
    found = sum(1 for _ in islice(sketch.settings(devices), MOST + 1))
    plans = f"more than {MOST:,} plans" if found > MOST else f"at most {counted(found, 'plan')}"
    opened = "; ".join(f"{p.name} in {listed(p.tried)}" for p in sketch.open)
    clocked = clocks.is_open(sketch) and clocks.parts_of(sketch, sketch.default, model)
    ordered = orders.is_open(sketch) or bool(clocked)
    ways = {
        "where stages are cut": cuts.is_open(sketch),
        "on how many devices each runs": widths.is_open(sketch),
        "which task runs when": ordered,
    }
    also = joined([words for words, is_open in ways.items() if is_open], "and")
    return f"open to `ssdsl search`: {opened}: {plans} on {counted(count, 'device')}{f'; {also}' if also else ''}"


def listed(numbers: Sequence[int]) -> str:
    """Numbers in a sentence; of more than 8 only the first two and the last."""
    return ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
