"""The life of an engine in a training script: joining the other ranks, the watchdog, the end.

A script that ends well waits for the last save and for the other ranks. One that ends with a user's mistake reports it
without a traceback; the launcher then ends the other ranks.
"""

import atexit
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

import torch.distributed as dist

from ..errors import EngineError
from ..health.heartbeat import Heartbeat
from ..health.start import join_ranks, transport
from ..health.watchdog import Watchdog
from ..ranks.transport import settle
from ..ranks.world import World
from .engine import Engine
from .programs import Programs

LOST = ("Connection closed by peer", "Connection reset by peer", "remote process exited")  # of gloo and NCCL
SAID, SAID_S = "said", 2.0  # the key of rank 0's last error in the store, and how long the others wait for it
LATER_S = 30.0  # torch.distributed times out that much later than the watchdog, whose report says more


def begin(
    programs: Callable[[World], Programs],
    *,
    device: str | None,
    backend: str | None,
    seed: int,
    timeout: float,
    mode: str = "default",
    blocking: bool = False,
) -> Engine:
    """The engine of this rank; `programs` is called once all ranks have joined. Called by all ranks alike.

    Raises EngineError on all ranks.
    """
    is_first = not dist.is_initialized()
    on, attempt = join_ranks(device, backend, timeout + LATER_S)
    world = World(transport(on, timeout + LATER_S), mode=mode, blocking=blocking)
    session = _Session(dist.get_rank(), owns_group=is_first)
    if "MASTER_ADDR" in os.environ and dist.get_world_size() > 1:
        session.start_watchdog(attempt, timeout)
    sys.excepthook = session.failed
    atexit.register(session.leave)
    session.report("compiling, or waiting for rank 0 to compile")
    found = programs(world)
    needed = found.training.table.world_size
    if needed != dist.get_world_size():
        raise EngineError(
            f"the plan is for {needed} devices, and the number of processes is {dist.get_world_size()}",
            f"start the script with `torchrun --nproc-per-node={needed} ...`, or set other parameters of the plan",
        )
    session.report("loading its weights")
    session.engine = engine = Engine(found, world, on, seed=seed)
    session.follow(engine)
    return engine


class _Session:
    """A rank from start to end; a script with two engines has two sessions. `owns_group`: the session made the process
    group, not the script."""

    has_failed = False  # whether the script ends with an exception

    def __init__(self, rank: int, owns_group: bool) -> None:
        self.rank, self.owns_group = rank, owns_group
        self.engine: Engine | None = None
        self.watchdog: Watchdog | None = None
        self.hook = sys.excepthook

    def start_watchdog(self, attempt: str, timeout: float) -> None:
        """Starts the watchdog: from now on a rank that does not move ends the run, with a report."""
        self.watchdog = Watchdog(Heartbeat(None, self.rank), dist.get_world_size(), timeout)
        self.watchdog.use_attempt(attempt)

    def report(self, doing: str) -> None:
        """Tells the watchdog what the rank does."""
        if self.watchdog is not None:
            self.watchdog.heartbeat.report(doing)

    def follow(self, engine: Engine) -> None:
        """From now on the watchdog asks the engine what the rank does."""
        if self.watchdog is not None:
            self.watchdog.heartbeat.report("training", engine.training.name)
            self.watchdog.heartbeat.follow(engine.now, engine.waits)

    def failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Reports an exception that ends the script."""
        _Session.has_failed = True
        self._stop()
        if isinstance(error, EngineError):
            self._tell(error)
        elif isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST):
            self._tell("another rank has ended; see what it says")
        elif not self._is_printed_by_rank_0("".join(traceback.format_exception(kind, error, trace))):
            self.hook(kind, error, trace)

    def leave(self) -> None:
        """Ends the session at the end of the script."""
        if self.has_failed:
            return
        try:
            if self.engine is not None:
                self.engine.close()
            self.report("waiting for the other ranks to end")
            if dist.is_initialized() and self.engine is not None:
                self.engine.control.leave()
        except EngineError as error:
            self._tell(error)
            os._exit(1)
        finally:
            self._stop()
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()
        settle()

    def _tell(self, error: EngineError | str) -> None:
        """Prints an error in one write, so that other ranks' output does not mix in; skipped if rank 0 prints the
        same."""
        if self._is_printed_by_rank_0(str(error)):
            return
        text = str(error).removeprefix(f"rank {self.rank}: ")
        sys.stderr.write(f"rank {self.rank}: {'' if text.startswith('error[') else 'error: '}{text}\n")
        sys.stderr.flush()

    def _is_printed_by_rank_0(self, text: str) -> bool:
        """Whether rank 0 prints the same text. Rank 0 writes its text to the store; the others wait a moment for it."""
        if self.watchdog is None:
            return False
        with contextlib.suppress(RuntimeError):  # the store has ended with rank 0
            if self.rank == 0:
                self.watchdog.store.put(SAID, text)
                return False
            end = time.monotonic() + SAID_S
            while (said := self.watchdog.store.get(SAID)) is None and time.monotonic() < end:
                time.sleep(0.05)
            return said == text
        return False

    def _stop(self) -> None:
        if self.watchdog is not None:
            self.watchdog.end()
            self.watchdog.heartbeat.stop()
