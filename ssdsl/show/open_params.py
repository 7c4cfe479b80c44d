"""What a plan leaves open, in a line."""

from itertools import islice
from pathlib import Path

from ssdsl.plan.model_index import ModelIndex
from ssdsl.show.search import listed
from ssdsl.sketch.sketch import sketch_of
from ssdsl.text.source import Source

MOST = 10_000  # settings that are counted


def open_params(source: Source, folder: Path | None, model: ModelIndex, count: int) -> str:
    """`open to ssdsl search: T in 1, 2, 4; M in 1, 2: at most 6 plans on 4 devices`; empty, where nothing is."""
    devices = range(count, count + 1)
    sketch = sketch_of(source, folder, model, devices)
    if not sketch.open:
        return ""
    settings = sum(1 for _ in islice(sketch.settings(devices), MOST))
    plans = f"more than {MOST:,}" if settings == MOST else f"at most {settings}"
    opened = "; ".join(f"{p.name} in {listed(p.tried)}" for p in sketch.open)
    return f"open to `ssdsl search`: {opened}: {plans} plans on {count} devices"
