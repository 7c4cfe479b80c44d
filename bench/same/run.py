"""`python -m bench same --against REV`: this tree and a revision compile, simulate and check the same plans.

Levels of a pair: a, all files and answers are equal byte for byte; b, they are up to names, and with --deep so are two
training steps to the bit; c, another program, whose simulated step and peak are not dearer. Anything else is worse. The
plans and models are those of the tests. Both checkouts are driven by their command lines alone.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from bench.same.checkouts import checkout
from bench.same.compare import Found, Level
from bench.same.comparison import Comparison
from bench.same.kept import FOLDER, Kept
from bench.same.pairs import Pair, pairs
from ssdsl.show.view import Column, ColumnKind, View, table

WIDTH = 130  # of tables
EXPLAINED = {
    Level.BYTES: "equal byte for byte",
    Level.NAMES: "equal up to names",
    Level.OTHER: "another program, not dearer",
    Level.WORSE: "worse, or refused by one alone",
}


def main(arguments: list[str]) -> int:
    """Prints every pair that is not equal byte for byte; 1 if one is worse than the level that is asked for."""
    options = _options(arguments)
    started, kept = time.monotonic(), Kept.of(options.against)
    talk = Console(stderr=True)
    found: dict[Pair, Found] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(place())
        old = stack.enter_context(checkout(kept.commit))
        wanted = chosen(pairs(FOLDER / "texts", options.texts), options.only, options.every)
        comparison = Comparison(old, folder, kept, options)
        stack.callback(comparison.stop)
        for number, (pair, result) in enumerate(comparison.all(wanted), 1):
            found[pair] = result
            line = f"{number} of {len(wanted)}  {result.level.letter}  {pair}  {result.what}"
            talk.print(line, highlight=False, markup=False, soft_wrap=True)
    ordered = {pair: found[pair] for pair in wanted}
    notes = (*comparison.notes, f"{len(found)} pairs in {time.monotonic() - started:.0f} s")
    report(ordered, notes, options)
    return int(any(f.level > "abc".index(options.level) for f in found.values()))


@contextmanager
def place() -> Iterator[Path]:
    """A folder for what is written, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ssdsl-same-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench same", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--against", required=True, metavar="REV", help="the revision to compare this tree with")
    add("--only", metavar="WORD", action="append", help="only pairs with this in plan, model or settings; repeatable")
    add("--every", type=int, default=1, metavar="N", help="each N-th pair alone, for a quick look")
    add("--texts", action="store_true", help="also the plans that are written in tests: three times as many pairs")
    add("--quick", action="store_true", help="compile and simulate alone")
    add("--cluster", action="append", help="simulate on this one; repeatable; laptop, if not given")
    add("--jobs", type=int, default=1, metavar="N", help="processes for each checkout")
    add("--deep", action="store_true", help="also two training steps of pairs that are not equal byte for byte")
    add("--level", choices="abc", default="a", help="what all pairs have to reach")
    add(
        "--renamed",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="a module of another name, runtime.a=runtime.b",
    )
    add("--json", action="store_true", help="one list of pairs instead of the tables")
    options = parser.parse_args(arguments)
    options.renamed = dict(two.split("=", 1) for two in options.renamed)
    options.cluster = options.cluster or ["laptop"]
    return options


def chosen(known: Sequence[Pair], only: list[str] | None, every: int) -> list[Pair]:
    """The pairs that have all the words, in their order."""
    found = [pair for pair in known if all(word in str(pair) for word in only or ())][::every]
    if not found:
        raise SystemExit(f"none of {len(known)} pairs has {' and '.join(only or ())}")
    return found


# -- the report -------------------------------------------------------------------------------------------------------


def report(found: dict[Pair, Found], notes: tuple[str, ...], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps([_row_json(pair, f) for pair, f in found.items()], indent=1))
        return
    console = Console(width=WIDTH)
    console.print(table(unlike_view(found), console.width))
    console.print(table(summary_view(found, notes, options), console.width))


def summary_view(found: dict[Pair, Found], notes: tuple[str, ...], options: argparse.Namespace) -> View:
    counts = Counter(f.level for f in found.values())
    rows = tuple((level.letter, EXPLAINED[level], counts[level]) for level in Level)
    if not options.deep and counts[Level.NAMES]:
        notes = ("no steps were compared: --deep does", *notes)
    columns = Column("level", style="bold"), Column("meaning"), Column("pairs", ColumnKind.COUNT)
    return View(f"this tree against {options.against}", columns, rows, notes)


def unlike_view(found: dict[Pair, Found]) -> View:
    """A row for each pair that is not equal byte for byte; of several clusters the one where it is dearest."""
    columns = (
        Column("level", style="bold"),
        Column("pair", fold=True),
        Column("differs in", fold=True),
        Column("step before", ColumnKind.SECONDS),
        Column("after", ColumnKind.SECONDS),
        Column("peak before", ColumnKind.BYTES),
        Column("after", ColumnKind.BYTES, key="peak_after"),
    )
    unlike = sorted(
        ((f.level, str(pair), f) for pair, f in found.items() if f.level is not Level.BYTES), key=lambda one: one[:2]
    )
    rows = tuple((level.letter, pair, f.what, *_costs(f)) for level, pair, f in unlike)
    return View("pairs that are not equal byte for byte", columns, rows, () if rows else ("none",))


def _costs(found: Found) -> tuple[float | int | None, ...]:
    if not found.costs:
        return None, None, None, None
    old, new = max(found.costs, key=lambda two: two[1].step_s / max(two[0].step_s, 1e-12))
    return old.step_s, new.step_s, old.peak_bytes, new.peak_bytes


def _row_json(pair: Pair, found: Found) -> dict[str, object]:
    costs = [{"old": [a.step_s, a.peak_bytes], "new": [b.step_s, b.peak_bytes]} for a, b in found.costs]
    return {
        "pair": str(pair),
        "level": found.level.letter,
        "differs_in": {what: level.letter for level, what in found.unlike},
        "costs": costs,
    }
