"""`python -m bench foresight [--only SOURCE] [--rounds N]`: every row with its error, and whether its bar is kept."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.foresight import alpa, experts, flash_attention, layer_bytes, megatron, real, zero_bubble
from bench.foresight.row import Row


@dataclass(frozen=True, slots=True)
class Published:
    """Rows of one source; errors may be so large in the median, and at most."""

    about: str
    rows: Callable[[], Iterator[Row]]
    middle: float
    most: float


SOURCES = {
    "table1": Published("Megatron-LM, SC'21, table 1", megatron.table_1, 0.04, 0.08),
    "table5": Published("Korthikanti et al. 2022, table 5", megatron.table_5, 0.04, 0.08),
    "megascale": Published("MegaScale, table 2: Megatron-LM", megatron.table_2, 0.06, 0.09),
    "flash": Published("FlashAttention-2, table 1", flash_attention.table_1, 0.05, 0.05),
    "layer": Published("Korthikanti et al. 2022, bytes of a layer (table 2)", layer_bytes.table_2, 0.0, 0.0),
    "alpa": Published("Alpa, figure 7", alpa.figure_7, 0.08, 0.08),
    "zero_bubble": Published("Zero Bubble, table 4", zero_bubble.table_4, 0.05, 0.05),
    "experts": Published("Megatron-Bridge, all_to_all beside a micro-batch", experts.overlap, 0.10, 0.10),
}


def main(arguments: list[str]) -> int:
    """Prints the rows of all sources, or of one; 1 if one is beyond its bar."""
    parser = argparse.ArgumentParser(prog="python -m bench foresight", description=__doc__)
    parser.add_argument("--only", choices=[*SOURCES, "real"], action="append")
    parser.add_argument("--rounds", type=int, default=real.ROUNDS, help="of the runs on this machine")
    parser.add_argument("--model", default=real.MODEL, help="that these train")
    options = parser.parse_args(arguments)
    chosen = options.only or [*SOURCES, "real"]
    console = Console()
    kept = [_show(console, SOURCES[name]) for name in chosen if name in SOURCES]
    if "real" in chosen:
        kept.append(real.show(console, options.model, options.rounds))
    return 0 if all(kept) else 1


def _show(console: Console, source: Published) -> bool:
    rows = []
    for row in source.rows():
        rows.append(row)
        console.print(f"{row.name}: {row.error:+.1%}", style="dim")
    found = Table("", "measured", "simulated", "", "error", "", title=source.about)
    for row in rows:
        numbers = f"{row.measured:.4g}", f"{row.predicted:.4g}"
        found.add_row(row.name, *numbers, row.unit, f"{row.error:+.1%}", "calibrated" if row.calibrates else "checked")
    console.print(found)
    middle, most = _errors(rows)
    keeps = middle <= source.middle + 1e-12 and most <= source.most + 1e-12
    bar = f"median {middle:.1%} (bar {source.middle:.0%}), worst {most:.1%} (bar {source.most:.0%})"
    console.print(f"{bar}: {'kept' if keeps else 'NOT KEPT'}\n")
    return keeps


def _errors(rows: Sequence[Row]) -> tuple[float, float]:
    errors = [abs(r.error) for r in rows]
    return median(errors), max(errors)
