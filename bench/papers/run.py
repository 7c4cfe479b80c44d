"""`python -m bench papers [--only swin] [--devices 4 8]`: searches, and writes what it finds into bench/results.

Each block is written as soon as it is known. A model is captured once for all its settings; a setting is compiled and
simulated in some seconds.
"""

import argparse
import time

from bench.papers.comparisons import Comparison
from bench.papers.page import (
    FOUND,
    PAGE,
    picture_block,
    picture_mark,
    table_block,
    table_mark,
    with_block,
)
from bench.papers.search import Found, Say, search, searched, simulated
from bench.papers.systems import ALL
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench papers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[c.name for c in ALL], help="these comparisons")
    parser.add_argument("--devices", nargs="+", type=int, help="these numbers of devices")
    parser.add_argument("--pictures", action="store_true", help="the pictures alone")
    args = parser.parse_args(arguments)
    started = time.monotonic()
    for comparison in (c for c in ALL if args.only is None or c.name in args.only):
        if args.pictures:
            write_picture(comparison)
        else:
            write_figures(comparison, args.devices, lambda text: print(f"{time.monotonic() - started:6.0f} s  {text}"))
    return 0


def write_figures(comparison: Comparison, chosen: list[int] | None, say: Say) -> None:
    """Its tables, and its picture, if no number of devices is chosen."""
    for devices in comparison.models:
        if chosen is None or devices in chosen:
            _write(table_mark(comparison, devices), table_block(comparison, found_on(comparison, devices, say)))
    if chosen is None:
        write_picture(comparison)


def found_on(comparison: Comparison, devices: int, say: Say) -> dict[str, Found | None]:
    """The best of each strategy, by its name, and what is found for the sketches."""
    graph = capture(load(comparison.models[devices]))
    say(f"captured {comparison.models[devices]}")
    best = {s.name: search(s, comparison, graph, devices, say) for s in comparison.strategies}
    return {**best, FOUND: searched(comparison.sketches, comparison.cluster, graph, devices, say)}


def write_picture(comparison: Comparison) -> None:
    if comparison.drawn is None:
        return
    spec, settings = comparison.drawn
    report = simulated(comparison.strategies[0].plan, settings, capture(load(spec)), comparison.cluster)
    _write(picture_mark(comparison), picture_block(report))


def _write(mark: str, block: str) -> None:
    PAGE.write_text(with_block(PAGE.read_text("utf-8"), mark, block), "utf-8")
