"""Runs a program without processes: its ranks are threads of this process that take turns.

Only one thread runs at a time, and it yields where it must wait for another rank. So every run is the same and costs no
more than its computation, and a deadlock is found at once: no thread can run.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from ssdsl.codegen.write import program_files
from ssdsl.ir.program import Program
from ssdsl.model.capture.initial_state import initial_state
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.in_process.mailbox import Mailboxes, Threaded
from ssdsl.run.in_process.precision import ComputedIn, RoundedScalars, made_in, program_in
from ssdsl.runtime.main import make_optimizer
from ssdsl.runtime.options import Training
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.observers import gradients, state
from ssdsl.runtime.train.programs import InMemory

T = TypeVar("T")
Place = Callable[[Callable[[], str]], None]
LIMIT_S, PATIENCE = 60.0, 10  # of one turn of a rank
LOOK_S = 0.5


class RanksFailed(Exception):
    """The run ended early. `kind` is crash, deadlock, mismatch or timeout; the text says which rank and where."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Stopped(BaseException):
    """Ends a rank because another one has failed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The losses of the steps, each rank's dump, and its communication by kind."""

    losses: tuple[float, ...]
    dumps: dict[int, Any]
    counts: dict[int, dict[str, dict[str, int]]]


@dataclass(slots=True)
class _Rank:
    """A thread, and the condition that it waits for; `ready` is None while it can run."""

    body: Callable[[], None]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] | None = None
    waits_for: Callable[[], str] = str
    where: Callable[[], str] = str
    done: bool = False
    thread: threading.Thread | None = None


class Clocks(NamedTuple):
    """The processor time of a thread, where the system counts it, else of this process; and the time of the machine."""

    processor_s: float
    wall_s: float

    @classmethod
    def now(cls, thread: threading.Thread | None = None) -> "Clocks":
        """Both now. Raises OSError for a thread that has ended."""
        if thread is None or thread.native_id is None or sys.platform != "linux":
            return cls(time.process_time(), time.monotonic())
        # Linux's clock of a thread by its number; `pthread_getcpuclockid` may crash for one that has ended
        return cls(time.clock_gettime(~thread.native_id << 3 | 6), time.monotonic())


class Turns:
    """The threads of the ranks, one of which runs at a time."""

    def __init__(self) -> None:
        self.ranks: list[_Rank] = []
        self.running = 0
        self.failure: RanksFailed | None = None
        self.since = Clocks.now()  # when the running rank began its turn
        self.ended = threading.Event()

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Runs all bodies to the end; raises RanksFailed."""
        self.ranks = [_Rank(body) for body in bodies]
        for number, rank in enumerate(self.ranks):
            rank.thread = threading.Thread(target=self._thread, args=(number,), daemon=True)
            rank.thread.start()
        self._hand_over()
        while not self.ended.wait(LOOK_S):
            if self._has_stalled():
                said = f"{self._described(self.running)} has computed for {LIMIT_S:.0f} s"
                self.failure = RanksFailed("timeout", f"{said}:\n{self._stack(self.running)}")
                break
        if self.failure is not None:
            raise self.failure
        self.ranks.clear()  # frees data loader workers now: garbage collection would end them late

    def wait(self, rank: int, ready: Callable[[], bool], waits_for: Callable[[], str]) -> None:
        """Lets other ranks run until `ready`; `waits_for` says what is missing."""
        if ready():
            return
        mine = self.ranks[rank]
        mine.ready, mine.waits_for = ready, waits_for
        self._hand_over()
        mine.turn.acquire()
        mine.ready = None
        if self.failure is not None:
            raise _Stopped

    def fail(self, kind: str, text: str) -> None:
        """Ends the run; the first failure counts."""
        self.failure = self.failure or RanksFailed(kind, text)

    def _thread(self, number: int) -> None:
        rank = self.ranks[number]
        rank.turn.acquire()
        try:
            if self.failure is None:
                rank.body()
        except _Stopped:
            pass
        except RanksFailed as failure:
            self.fail(failure.kind, f"{self._described(number)}: {failure}")
        except BaseException as error:
            self.fail("crash", f"{self._described(number)}:\n{''.join(traceback.format_exception(error))}")
        rank.done = True
        self._hand_over()

    def _hand_over(self) -> None:
        """Wakes the next rank that can run, after the one that ran."""
        alive = [n for n, r in enumerate(self.ranks) if not r.done]
        if not alive:
            self.ended.set()
            return
        after = sorted(alive, key=lambda n: (n <= self.running, n))
        able = [n for n in after if (ready := self.ranks[n].ready) is None or ready()]
        if not able and self.failure is None:
            lines = (f"{self._described(n)} waits for {self.ranks[n].waits_for()}" for n in alive)
            self.fail("deadlock", "\n".join(lines))
        self.running = after[0] if self.failure is not None else able[0]
        self.since = Clocks.now(self.ranks[self.running].thread)
        self.ranks[self.running].turn.release()

    def _has_stalled(self) -> bool:
        """Whether the running rank has had the processor for the limit, or has done nothing for a multiple of it: on a
        busy machine processes wait for a processor. One that has ended has not."""
        try:
            now = Clocks.now(self.ranks[self.running].thread)
        except OSError:
            return False
        return now.processor_s - self.since.processor_s > LIMIT_S or now.wall_s - self.since.wall_s > PATIENCE * LIMIT_S

    def _stack(self, number: int) -> str:
        """The place in the code where a rank is."""
        thread = self.ranks[number].thread
        frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
        return "".join(traceback.format_stack(frame)) if frame is not None else "(its thread has ended)"

    def _described(self, number: int) -> str:
        doing = self.ranks[number].where()
        return f"rank {number}" + (f", {doing}" if doing else "")


def run_ranks(count: int, body: Callable[[World, Place], T]) -> list[T]:
    """The result of each rank's body; raises RanksFailed if a rank crashes, hangs or mismatches another.

    A body calls its `Place` with a function that says where it is, for the report of a failure.
    """
    turns = Turns()
    exchange = Mailboxes(count, turns.wait, RanksFailed)
    results: dict[int, T] = {}

    def run(rank: int) -> None:
        def place(where: Callable[[], str]) -> None:
            turns.ranks[rank].where = where

        results[rank] = body(World(Threaded(rank, exchange)), place)

    with one_thread():
        turns.run([partial(run, rank) for rank in range(count)])
    exchange.check_empty()
    return [results[rank] for rank in range(count)]


def run_in_process(program: CompiledProgram, training: Training, dtype: torch.dtype | None = None) -> Finished:
    """Trains as `launch` does with `dump`, with everything in `dtype` if given; raises RanksFailed."""
    if dtype is None:
        return _run_in_process(program, training, nullcontext)
    program = program_in(program, dtype)
    with made_in(dtype):
        return _run_in_process(program, training, partial(ComputedIn, dtype))


def run_with_noise(program: CompiledProgram, training: Training) -> Finished:
    """Trains so, with the last digit of each element of each operator's result wrong; raises RanksFailed."""
    return _run_in_process(program, training, partial(RoundedScalars, training.seed, elements=True))


def _run_in_process(
    program: CompiledProgram, training: Training, mode: Callable[[], AbstractContextManager[Any]]
) -> Finished:
    """Trains, with each rank in a dispatch mode of its own, because modes belong to threads."""

    def train(world: World, place: Place) -> tuple[list[float], Any, Any]:
        with mode():
            return train_in_mode(InMemory(_own(program)), world, place)

    def train_in_mode(own: InMemory, world: World, place: Place) -> tuple[list[float], Any, Any]:
        engine = Engine(own, world, torch.device("cpu"), seed=training.seed)
        share = engine.training
        place(lambda: f"role {share.name}, {share.runner.doing or 'between tasks'}")
        grads: list[dict[str, Any]] = []
        make_optimizer(engine, training.optimizer, training.lr)
        engine.watch_gradients(lambda: grads.append(gradients(engine.weights, engine.pieces)))
        batches = own.training.batches
        losses = [engine.step(batches[n % len(batches)], allow_nan=True) for n in range(training.steps)]
        return losses, {**state(engine.weights, engine.pieces), "grads": grads}, world.counts

    found = run_ranks(program.table.world_size, train)
    losses, dumps, counts = zip(*found, strict=True)
    return Finished(tuple(losses[0]), dict(enumerate(dumps)), dict(enumerate(counts)))


@contextmanager
def one_thread() -> Iterator[None]:
    """A context with one intra-op thread: else each rank would have a pool that competes with the running rank. Small
    tensors gain nothing by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def program_of(compiled: Program, model: Model) -> CompiledProgram:
    """The program that `write_program` would write to a folder, in memory."""
    texts = program_files(compiled, model.precision)
    return CompiledProgram.of(texts, initial_state(model, compiled.graph), list(model.batches))


def _own(program: CompiledProgram) -> CompiledProgram:
    """A copy of the program whose tensors a rank may write to."""
    return replace(
        program, weights=program.weights.copy(), batches=[{n: t.clone() for n, t in b.items()} for b in program.batches]
    )
