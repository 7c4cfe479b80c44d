"""Compares pairs of plan and model, some at a time: asks both checkouts, and has what they compiled train."""

import argparse
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.same.checkouts import ROOT, Answer, Worker
from bench.same.compare import Files, Found, Level, Side, changed_files, compared
from bench.same.kept import Kept, unpack
from bench.same.pairs import Pair
from bench.same.steps import Starter, same_steps, starter

PROGRAM = "program"  # the folder that both compile into, each where it works
RUNTIME = "runtime/"
UNKNOWN = 2  # the exit status of a command that a checkout does not have
Commands = dict[str, list[str]]


def commands(pair: Pair, clusters: list[str], quick: bool) -> Commands:
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


@dataclass(frozen=True, slots=True)
class Seat:
    """The processes with which a pair is compared at a time: of the old checkout, of the new one, and of ranks."""

    old: Worker
    new: Worker
    ranks: Starter | None

    def refresh(self) -> None:
        """Fresh processes where they are worn."""
        for worker in (self.old, self.new):
            if worker.is_worn:
                worker.stop()

    def close(self) -> None:
        self.old.close()
        self.new.close()


class Comparison:
    """Compares pairs, several at a time. What the old checkout answers is kept for the next time."""

    def __init__(self, old: Path, folder: Path, kept: Kept, options: argparse.Namespace) -> None:
        self.roots = old, ROOT
        self.folder, self.kept, self.options = folder, kept, options
        self.runtime: tuple[str, ...] | None = None  # its files that are not alike
        self._free: list[Seat] = []
        self._open = ExitStack()
        self._lock = threading.Lock()

    @property
    def notes(self) -> tuple[str, ...]:
        if self.runtime is None:
            return ()
        return (f"runtime: {', '.join(self.runtime)} differ" if self.runtime else "runtime: equal byte for byte",)

    def all(self, wanted: list[Pair]) -> Iterator[tuple[Pair, Found]]:
        """As they end."""
        self._free = [self._seat(self.folder / str(number)) for number in range(self.options.jobs)]
        with ThreadPoolExecutor(self.options.jobs) as pool:
            waiting = {pool.submit(self.one, pair): pair for pair in wanted}
            try:
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            except BaseException:  # Ctrl-C as well
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def _seat(self, folder: Path) -> Seat:
        folder.mkdir(parents=True)
        old, new = (Worker(root, folder / name) for root, name in zip(self.roots, ("old", "new"), strict=True))
        ranks = self._open.enter_context(starter(folder / "ranks.log")) if self.options.deep else None
        seat = Seat(old, new, ranks)
        self._open.callback(seat.close)
        return seat

    def stop(self) -> None:
        self._open.close()

    def one(self, pair: Pair) -> Found:
        """A pair, by the processes that are free."""
        with self._lock:
            seat = self._free.pop()
        try:
            seat.refresh()
            old, new = self._sides(seat, pair)
            if self.runtime is None and old.files and new.files:
                self.runtime = self._unlike_runtime(old.files, new.files)
            found = compared(own(old), own(new), self.options.renamed)
            return found if seat.ranks is None else self._trained(found, seat, seat.ranks, pair, old.files)
        except Exception as error:  # of one pair of hundreds
            return Found(((Level.WORSE, f"cannot be compared, {type(error).__name__}: {error}"),))
        finally:
            self._free.append(seat)

    def _sides(self, seat: Seat, pair: Pair) -> tuple[Side, Side]:
        """What both make of a pair; commands that one of them does not have are left out."""
        asked = commands(pair, self.options.cluster, self.options.quick)
        old = self.kept.load(pair, asked)
        if old is None:
            old, new = self._answered((seat.old, seat.new), asked)
            if not any(answer.is_crash for answer in old.answers.values()):
                self.kept.save(pair, asked, old)
        else:
            (new,) = self._answered((seat.new,), asked)
        both = [c for c in asked if UNKNOWN not in (old.answers[c].status, new.answers[c].status)]
        old, new = (Side({c: side.answers[c] for c in both}, side.files) for side in (old, new))
        return old, new

    def _answered(self, workers: Sequence[Worker], asked: Commands) -> list[Side]:
        """The answers of each, at the same time."""
        for worker in workers:
            shutil.rmtree(worker.folder / PROGRAM, ignore_errors=True)
        answers: list[dict[str, Answer]] = [{} for _ in workers]
        for name, command in asked.items():
            for worker in workers:
                worker.ask(command)
            for worker, mine in zip(workers, answers, strict=True):
                mine[name] = self._without_roots(worker.answer())
        return [Side(mine, written(w.folder / PROGRAM)) for w, mine in zip(workers, answers, strict=True)]

    def _without_roots(self, answer: Answer) -> Answer:
        """Paths of both checkouts alike."""
        out, err = answer.out, answer.err
        for root in map(str, self.roots):
            out, err = out.replace(root, "CHECKOUT"), err.replace(root, "CHECKOUT")
        return Answer(answer.status, out, err)

    def _unlike_runtime(self, old: Files, new: Files) -> tuple[str, ...]:
        first, second = ({n: text for n, text in files.items() if n.startswith(RUNTIME)} for files in (old, new))
        return changed_files(first, second, self.options.renamed)

    def _trained(self, found: Found, seat: Seat, ranks: Starter, pair: Pair, old: Files) -> Found:
        """With two steps of both; where other programs give other numbers, the new one is verified."""
        programs = [worker.folder / PROGRAM for worker in (seat.old, seat.new)]
        if (found.level is Level.BYTES and not self.runtime) or not old or not programs[1].exists():
            return found
        if not programs[0].exists():
            unpack(old, programs[0])
        outs = [program.with_name("steps") for program in programs]
        for out in outs:
            shutil.rmtree(out, ignore_errors=True)
        ends = [ranks.train(program, out) for program, out in zip(programs, outs, strict=True)]
        if not ends[1]:
            return found.and_also(Level.WORSE, "two steps: the new program fails")
        if ends[0] and same_steps(*outs):
            return found
        seat.new.ask(["verify", *pair.arguments, "--steps", "2", "--json"])
        verified = seat.new.answer().status == 0
        text = "two steps: other numbers" + ("" if verified else ", not those of a single device")
        return found.and_also(Level.OTHER if verified else Level.WORSE, text)


def written(folder: Path) -> Files:
    """All files of a compiled folder."""
    found = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def own(side: Side) -> Side:
    """Without the runtime, which is the same for all plans."""
    return Side(side.answers, {name: text for name, text in side.files.items() if not name.startswith(RUNTIME)})
