"""`engine.replan`, there and back: bytes, time and memory beside what the regions of the two plans ask for.

Ranks of this machine are joined by an emulated network. Bytes: what ranks got, beside what `ssdsl reshard` says. Time:
that of the change without compiling, beside that of the busiest link. Memory: the most that a rank's tensors take while
the plan changes, beside those of the old plan and of the new one together.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.launch import SSDSL, TORCHRUN, call
from ssdsl.runtime.link.host import VARIABLE
from ssdsl.runtime.link.speed import Speed

SLOWER, FULLER = 1.3, 1.3  # the largest ratios of time and of memory that are right: messages lie in buffers, too


@dataclass(frozen=True)
class Way:
    """A shipped plan for some ranks, and its params before and after the change."""

    plan: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    ranks: int = 4

    def back(self) -> "Way":
        """The way back."""
        return Way(self.plan, self.after, self.before, self.ranks)


WAYS = (Way("megatron", ("S=1", "T=4"), ("S=4", "T=1")),)


@dataclass(frozen=True)
class Change:
    """What was measured of a change, beside what it should be; `peak` and `both` are of the fullest rank."""

    moved: int
    said: int
    took_s: float
    link_s: float
    peak: int
    both: int

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Of bytes, time and memory."""
        moved = self.moved / self.said if self.said else 1.0 + self.moved
        return moved, self.took_s / self.link_s if self.link_s else 0.0, self.peak / self.both

    @property
    def is_right(self) -> bool:
        """Whether no ratio is too large."""
        moved, time, memory = self.ratios
        return moved == 1 and time <= SLOWER and memory <= FULLER


def main(arguments: list[str] | None = None) -> int:
    """Prints a row of each change; 1 if one is not right."""
    parser = argparse.ArgumentParser(prog="python -m bench replan", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt:small")
    parser.add_argument("--link", default="bandwidth=25Mb/s", help="the emulated network, as of `ssdsl run`")
    parser.add_argument("--rounds", type=int, default=3, help="changes there and back; the fastest counts")
    args = parser.parse_args(arguments)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(("plan", "from", "to", "MB", "/ said", "ms", "/ link", "peak MB", "/ both")):
        table.add_column(heading, no_wrap=True, justify="left" if number < 3 else "right")
    wrong = 0
    for way in WAYS:
        for one, change in measured(way, args.model, args.link, args.rounds):
            wrong += not change.is_right
            bytes_, time, memory = (f"{ratio:.3f}" for ratio in change.ratios)
            sizes = f"{change.moved / 1e6:.2f}", f"{change.took_s * 1e3:.0f}", f"{change.peak / 1e6:.1f}"
            cells = (sizes[0], bytes_, sizes[1], time, sizes[2], memory)
            table.add_row(one.plan, " ".join(one.before), " ".join(one.after), *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 1 if wrong else 0


def measured(way: Way, model: str, link: str, rounds: int) -> list[tuple[Way, Change]]:
    """The way there and the way back, each with what was measured of it."""
    speed = Speed.read(link)
    with tempfile.TemporaryDirectory() as folder:
        words = ("--plan", way.plan, "--model", model, "--rounds", str(rounds), "--out", folder)
        program = ("-m", "bench.replan_rank", *words, "--before", *way.before, "--after", *way.after)
        call([*TORCHRUN, f"--nproc-per-node={way.ranks}", *program], environment={VARIABLE: link})
        ranks = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(way.ranks)]
    found = []
    for number, one in enumerate((way, way.back())):
        said, rows = expected(one, model), [rank[number] for rank in ranks]
        link_s = max((sent["bytes"] / speed.between(sent["from"], sent["to"]) for sent in said["sent"]), default=0.0)
        took_s = min(max(times) for times in zip(*(row["seconds"] for row in rows), strict=True))
        fullest = max(rows, key=lambda row: row["peak_bytes"] / (row["old_bytes"] + row["new_bytes"]))
        both = fullest["old_bytes"] + fullest["new_bytes"]
        moved = sum(row["moved_bytes"] for row in rows)
        found.append((one, Change(moved, said["bytes"], took_s, link_s, fullest["peak_bytes"], both)))
    return found


def expected(way: Way, model: str) -> dict[str, Any]:
    """What `ssdsl reshard` says of a way."""
    settings = [word for value in way.before for word in ("--set", value)]
    settings += [word for value in way.after for word in ("--and", value)]
    found: dict[str, Any] = json.loads(call([*SSDSL, "reshard", way.plan, "--model", model, *settings, "--json"]))
    return found
