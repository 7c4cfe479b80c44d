"""`python -m bench same --against REV`: this tree and a revision compile, simulate and check the same plans.

Levels of a pair: a, all files and answers are equal byte for byte; b, they are up to names, and with --deep so are two
training steps to the bit; c, another program, whose simulated step and peak are not dearer. Anything else is worse. The
plans and models are those of the tests. Both checkouts are driven by their command lines alone.
"""

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from bench.same.checkouts import ROOT, Answer, Both, Worker, checkout
from bench.same.compare import Files, Found, Level, Side, changed_files, compared
from bench.same.pairs import Pair, pairs
from bench.same.steps import Starter, same_steps, starter
from ssdsl.show.view import Column, Kind, View, table

PROGRAM = "program"  # the folder that both compile into, each where it works
RUNTIME = "runtime/"
WIDTH = 130  # of tables
UNKNOWN = 2  # the exit status of a command that a checkout does not have
EXPLAINED = {
    Level.BYTES: "equal byte for byte",
    Level.NAMES: "equal up to names",
    Level.OTHER: "another program, not dearer",
    Level.WORSE: "worse, or refused by one alone",
}


def main(arguments: list[str]) -> int:
    """Prints every pair that is not equal byte for byte; 1 if one is worse than the level that is asked for."""
    options = _options(arguments)
    started = time.monotonic()
    talk = Console(stderr=True)
    found: dict[Pair, Found] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(place())
        old = stack.enter_context(checkout(options.against))
        wanted = chosen(pairs(folder / "texts", options.texts), options.only, options.every)
        comparison = Comparison(old, folder, options)
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
    return [pair for pair in known if all(word in str(pair) for word in only or ())][::every]


def commands(pair: Pair, clusters: list[str], quick: bool) -> dict[str, list[str]]:
    """What both checkouts are asked, by a short name."""
    plan, *model = pair.arguments
    found = {"compile": ["compile", plan, *model, "--out", PROGRAM]}
    if not quick:
        found |= {
            "check": ["check", plan, *model, "--json"],
            "show program": ["show", plan, "program", *model, "--json"],
            "show tasks": ["show", plan, "tasks", *model, "--json"],
        }
    return found | {f"simulate {c}": ["simulate", plan, *model, "--cluster", c, "--json"] for c in clusters}


class Comparison:
    """Compares pairs, some at a time, each with two processes of its own."""

    def __init__(self, old: Path, folder: Path, options: argparse.Namespace) -> None:
        self.roots = old, ROOT
        self.folder, self.options = folder, options
        self.runtime: tuple[str, ...] | None = None  # its files that are not alike
        self._free: list[tuple[Both, Starter | None]] = []
        self._open = ExitStack()
        self._lock = threading.Lock()

    @property
    def notes(self) -> tuple[str, ...]:
        if self.runtime is None:
            return ()
        return (f"runtime: {', '.join(self.runtime)} differ" if self.runtime else "runtime: equal byte for byte",)

    def all(self, wanted: list[Pair]) -> Iterator[tuple[Pair, Found]]:
        """As they end."""
        for number in range(self.options.jobs):
            self._free.append(self._start(self.folder / str(number)))
        with ThreadPoolExecutor(self.options.jobs) as pool:
            waiting = {pool.submit(self.one, pair): pair for pair in wanted}
            try:
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            except BaseException:  # Ctrl-C as well
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def _start(self, folder: Path) -> tuple[Both, Starter | None]:
        old, new = (Worker(root, folder / name) for root, name in zip(self.roots, ("old", "new"), strict=True))
        both = Both(old, new)
        self._open.callback(both.stop)
        return both, self._open.enter_context(starter(folder / "ranks.log")) if self.options.deep else None

    def stop(self) -> None:
        self._open.close()

    def one(self, pair: Pair) -> Found:
        """A pair, by the processes that are free."""
        with self._lock:
            both, ranks = self._free.pop()
        try:
            both.refresh()
            found = self._compared(both, pair)
            return found if ranks is None else self._trained(found, both, ranks, pair)
        except Exception as error:  # of one pair of hundreds
            return Found(((Level.WORSE, f"cannot be compared, {type(error).__name__}: {error}"),))
        finally:
            self._free.append((both, ranks))

    def _compared(self, both: Both, pair: Pair) -> Found:
        for worker in both.each:
            shutil.rmtree(worker.folder / PROGRAM, ignore_errors=True)
        old, new = dict[str, Answer](), dict[str, Answer]()
        for name, command in commands(pair, self.options.cluster, self.options.quick).items():
            answers = both.run(command)
            if UNKNOWN not in {a.status for a in answers}:
                old[name], new[name] = (self._without_roots(a) for a in answers)
        files = [written(worker.folder / PROGRAM) for worker in both.each]
        if self.runtime is None and all(files):
            self.runtime = self._unlike_runtime(*files)
        return compared(Side(old, own(files[0])), Side(new, own(files[1])), self.options.renamed)

    def _without_roots(self, answer: Answer) -> Answer:
        """Paths of both checkouts alike."""
        out, err = answer.out, answer.err
        for root in map(str, self.roots):
            out, err = out.replace(root, "CHECKOUT"), err.replace(root, "CHECKOUT")
        return Answer(answer.status, out, err)

    def _unlike_runtime(self, old: Files, new: Files) -> tuple[str, ...]:
        first, second = ({n: text for n, text in files.items() if n.startswith(RUNTIME)} for files in (old, new))
        return changed_files(first, second, self.options.renamed)

    def _trained(self, found: Found, both: Both, ranks: Starter, pair: Pair) -> Found:
        """With two steps of both; where other programs give other numbers, the new one is verified."""
        programs = [worker.folder / PROGRAM for worker in both.each]
        if (found.level is Level.BYTES and not self.runtime) or not all(p.exists() for p in programs):
            return found
        outs = [worker.folder / "steps" for worker in both.each]
        for out in outs:
            shutil.rmtree(out, ignore_errors=True)
        ends = [ranks.train(program, out) for program, out in zip(programs, outs, strict=True)]
        if not ends[1]:
            return found.and_also(Level.WORSE, "two steps: the new program fails")
        if ends[0] and same_steps(*outs):
            return found
        both.new.ask(["verify", *pair.arguments, "--steps", "2", "--json"])
        verified = both.new.answer().status == 0
        text = "two steps: other numbers" + ("" if verified else ", not those of a single device")
        return found.and_also(Level.OTHER if verified else Level.WORSE, text)


def written(folder: Path) -> Files:
    """All files of a compiled folder."""
    found = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def own(files: Files) -> Files:
    """The files that are written for a plan: the runtime is the same for all."""
    return {name: content for name, content in files.items() if not name.startswith(RUNTIME)}


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
    columns = Column("level", style="bold"), Column("meaning"), Column("pairs", Kind.COUNT)
    return View(f"this tree against {options.against}", columns, rows, notes)


def unlike_view(found: dict[Pair, Found]) -> View:
    """A row for each pair that is not equal byte for byte; of several clusters the one where it is dearest."""
    columns = (
        Column("level", style="bold"),
        Column("pair", fold=True),
        Column("differs in", fold=True),
        Column("step before", Kind.SECONDS),
        Column("after", Kind.SECONDS),
        Column("peak before", Kind.BYTES),
        Column("after", Kind.BYTES, key="peak_after"),
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
