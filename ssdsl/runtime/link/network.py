"""The emulated network of one process: its links to other ranks, and a thread that moves what they carry.

Two ranks have a link in each direction, which carries one thing at a time. A message of n bytes whose turn comes at
time t arrives at `t + n / bandwidth + latency`:

    rank 0 sends 1 MiB, then 2 MiB, over 1 Gb/s with a latency of 2 ms (times in ms)

    the link carries   0 |-- 1 MiB --| 8.4 |-------- 2 MiB --------| 25.2
    arrived                             10.4                          27.2

The sender copies a message, block by block and shortly before the link is free for it, to memory that all ranks share,
and tells the receiver through a pipe where the block is and when it arrives. The receiver sleeps until then, and reads
it there. So a busy link takes no processor time; a message costs a copy on each side, or an addition on the second.
"""

import atexit
import math
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .speed import Speed

BLOCK = 1 << 20  # bytes of a block of shared memory, the most that travels as one
BLOCKS = 1 << 10  # of each rank; only those that have been used take memory
AHEAD = 3  # blocks that are copied before the link is free for them
RETRY_S = 1e-3  # until a receiver may have released a block
LOOK_S = 1.0  # from one look for ranks that have ended to the next
RECORD = struct.Struct("=qiiiid")  # of a pipe: an arriving block
RECORDS = RECORD.size << 10  # bytes that are read from a pipe at once


@dataclass(frozen=True, slots=True)
class Channel:
    """Separates the messages of two ranks: those of each group, and within it of each tag. Collectives have tag -1."""

    group: int
    tag: int


@dataclass(frozen=True, slots=True)
class Send:
    """A step of an operation: bytes go into the queue of the link to a rank. They must not change until they left."""

    to: int
    octets: Tensor


@dataclass(frozen=True, slots=True)
class Receive:
    """A step of an operation: it waits for a block of so many bytes from one of these ranks, and gets its bytes."""

    sources: tuple[int, ...]
    size: int


Steps = Generator[Send | Receive, Any, None]


class SharedBlocks:
    """The shared memory of a rank: blocks that it writes and others read. The first one has a byte for each block, 1 if
    it is in use."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, BLOCK * BLOCKS)
        self._octets = torch.frombuffer(self._map, dtype=torch.uint8)

    def take(self) -> int | None:
        """The number of a free block, which is in use from now on; None if there is none."""
        number = self._map.find(b"\0", 1, BLOCKS)
        if number < 0:
            return None
        self._map[number] = 1
        return number

    def release(self, number: int) -> None:
        """Lets the owner use a block again."""
        self._map[number] = 0

    def block(self, number: int, size: int) -> Tensor:
        """The first bytes of a block."""
        return self._octets[number * BLOCK : number * BLOCK + size]


@dataclass(slots=True)
class Message:
    """Bytes in the queue of a link: `done` of them are on their way; the last one leaves this rank at `left_at`."""

    channel: Channel
    octets: Tensor
    ready_at: float
    done: int = 0
    left_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Arriving:
    """A block in the memory of the rank that sent it, and when it arrives."""

    number: int
    size: int
    arrival: float


@dataclass(slots=True)
class EmulatedLink:
    """The link to a rank: it carries one message after another, and is free from `free_at` on."""

    pipe: int
    bytes_per_s: float
    latency_s: float
    queue: deque[Message] = field(default_factory=deque)
    free_at: float = 0.0

    def carry(self, rank: int, memory: SharedBlocks, now: float) -> float:
        """Hands over the blocks that leave next. Returns when it is to be called again."""
        block_s = BLOCK / self.bytes_per_s
        while self.queue and self.free_at < now + AHEAD * block_s:
            message = self.queue[0]
            octets = message.octets[message.done : message.done + BLOCK]
            if (number := memory.take()) is None:
                return now + RETRY_S
            memory.block(number, len(octets)).copy_(octets)
            left_at = max(self.free_at, message.ready_at) + len(octets) / self.bytes_per_s
            channel, arrival = message.channel, left_at + self.latency_s
            try:
                os.write(self.pipe, RECORD.pack(channel.group, channel.tag, rank, number, len(octets), arrival))
            except BlockingIOError:  # the receiver has not read of two thousand blocks
                memory.release(number)
                return now + RETRY_S
            except BrokenPipeError:  # the receiver has ended
                memory.release(number)
            self.free_at = left_at
            message.done += len(octets)
            if message.done == len(message.octets):
                message.left_at = left_at
                self.queue.popleft()
        return self.free_at - block_s if self.queue else math.inf


@dataclass(eq=False, slots=True)
class Operation:
    """A collective, a send or a receive; `finish` is called at its end, with None or the error.

    Operations of one lane run one after another, in the order in which they were started. What an operation sends is
    ready at its `clock`: its start, or the arrival of the last block. So the network is not slower if its thread is.
    """

    name: str
    steps: Steps
    channel: Channel
    lane: object
    deadline: float
    finish: Callable[[Exception | None], None]
    clock: float = field(default_factory=time.monotonic)
    after: "Operation | None" = None
    messages: list[Message] = field(default_factory=list)
    has_begun: bool = False
    waits_for: Receive | None = None
    source: int = -1  # the rank of the last block
    is_over: bool = False
    error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """Ends it, if it has not ended, and lets go of its tensors."""
        if not self.is_over:
            self.is_over, self.error = True, error
            self.messages.clear()
            finish, self.finish, self.steps = self.finish, lambda _: None, _none()
            finish(error)


def _none() -> Steps:
    """No steps."""
    yield from ()


class EmulatedNetwork:
    """The links of this process to all ranks, itself too, for all its process groups."""

    def __init__(self, speed: Speed, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        shared = os.memfd_create("ssdsl link")
        os.ftruncate(shared, BLOCK * BLOCKS)
        self._inbox, pipe = os.pipe2(os.O_NONBLOCK)
        store.set(f"{rank}", f"{os.getpid()} {shared} {pipe} {socket.gethostname()}")
        self._links, self._memories = dict[int, EmulatedLink](), dict[int, SharedBlocks]()
        for other in range(size):
            process, its_memory, its_pipe, host = store.get(f"{other}").decode().split(maxsplit=3)
            if host != socket.gethostname():
                raise RuntimeError(f"an emulated link joins processes of one machine: rank {other} is on {host}")
            opened = os.open(f"/proc/{process}/fd/{its_memory}", os.O_RDWR)
            self._memories[other] = SharedBlocks(opened)
            os.close(opened)
            into = os.open(f"/proc/{process}/fd/{its_pipe}", os.O_WRONLY | os.O_NONBLOCK)
            self._links[other] = EmulatedLink(into, speed.between(rank, other), speed.latency_s)
        self._arriving = defaultdict[tuple[int, Channel], deque[Arriving]](deque)
        self._submitted, self._active = deque[Operation](), list[Operation]()
        self._last = dict[object, Operation]()  # of each lane
        self._gone = set[int]()
        self._is_closed = False
        self._opened = (shared, self._inbox, pipe, *(link.pipe for link in self._links.values()))
        self._thread = threading.Thread(target=self._run, name="moves messages", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, operation: Operation) -> None:
        """Starts an operation; called by any thread."""
        self._submitted.append(operation)
        if self._is_closed:
            self._end_all()
        else:
            self._wake()

    def close(self) -> None:
        """Ends the thread; nothing arrives any more."""
        self._is_closed = True
        self._wake()
        self._thread.join()
        for descriptor in self._opened:
            os.close(descriptor)
        atexit.unregister(self.close)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # there is enough to wake up for
            os.write(self._links[self.rank].pipe, RECORD.pack(0, 0, -1, 0, 0, 0.0))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        memory = self._memories[self.rank]
        try:
            while not self._is_closed:
                self._take_submitted()
                now = time.monotonic()
                due = [self._advance(operation, now) for operation in self._active]
                due += [link.carry(self.rank, memory, now) for link in self._links.values()]
                due += [self._finish(operation, now) for operation in self._active]
                self._active = [operation for operation in self._active if not operation.is_over]
                self._listen(min(due))
        finally:
            self._is_closed = True
            self._end_all()

    def _end_all(self) -> None:
        self._take_submitted()
        for operation in self._active:
            operation.end(RuntimeError(f"{operation.name}: the emulated network is closed"))

    def _take_submitted(self) -> None:
        while self._submitted:
            operation = self._submitted.popleft()
            if operation.lane is not None:
                operation.after = self._last.get(operation.lane)
                self._last[operation.lane] = operation
            self._active.append(operation)

    def _advance(self, operation: Operation, now: float) -> float:
        """Runs an operation as far as it gets. Returns when the next block arrives, if that is known."""
        if operation.after is not None and not operation.after.is_over:
            return math.inf
        if operation.after is not None and operation.after.error is not None:
            operation.end(operation.after.error)
        elif not operation.has_begun:
            if operation.after is not None:
                operation.clock = max(operation.clock, operation.after.clock)
            operation.has_begun, operation.after = True, None
            self._step(operation, None)
        while (wanted := operation.waits_for) is not None and not operation.is_over:
            sources = wanted.sources  # whoever sends first, and then all that this one sends
            if len(sources) > 1 and operation.source >= 0:
                sources = (operation.source,)
            queues = ((source, self._arriving[source, operation.channel]) for source in sources)
            source, queue = next((pair for pair in queues if pair[1]), (-1, None))
            if queue is None:
                if self._gone.issuperset(sources):
                    gone = ", ".join(map(str, sources))
                    operation.end(RuntimeError(f"{operation.name}: rank {gone} has ended, and this rank waits for it"))
                break
            if queue[0].arrival > now:
                return queue[0].arrival
            block, operation.source = queue.popleft(), source
            operation.clock = max(operation.clock, block.arrival)
            if block.size == wanted.size:
                self._step(operation, self._memories[source].block(block.number, block.size))
            else:
                fact = f"rank {source} sent {block.size} bytes where {wanted.size} were expected"
                operation.end(RuntimeError(f"{operation.name}: {fact}; the ranks do not make the same calls"))
            self._memories[source].release(block.number)
        return math.inf

    def _step(self, operation: Operation, octets: Tensor | None) -> None:
        """Runs an operation until it waits for a block, or is done."""
        operation.waits_for = None
        try:
            with torch.inference_mode():  # which writes to the results of others in this mode, too
                step = operation.steps.send(octets)
                while isinstance(step, Send):
                    if len(step.octets):
                        message = Message(operation.channel, step.octets, operation.clock)
                        operation.messages.append(message)
                        self._links[step.to].queue.append(message)
                    step = next(operation.steps)
                operation.waits_for = step
        except StopIteration:
            pass
        except Exception as error:
            operation.end(error)

    def _finish(self, operation: Operation, now: float) -> float:
        """Ends an operation that is done and whose messages have left, or that waits too long. Returns when to look
        again."""
        if operation.has_begun and operation.waits_for is None:
            left_at = max((message.left_at for message in operation.messages), default=0.0)
            if left_at > now and not operation.is_over:
                return min(left_at, operation.deadline)
            operation.end()
        elif now > operation.deadline:
            operation.end(RuntimeError(f"{operation.name}: timed out"))
        return now if operation.is_over else operation.deadline

    def _listen(self, due: float) -> None:
        """Sleeps until something is due, or other ranks or threads have news."""
        pause = min(max(0.0, due - time.monotonic()), LOOK_S) if self._active else None
        if select.select([self._inbox], [], [], pause)[0]:
            for group, tag, source, number, size, arrival in RECORD.iter_unpack(os.read(self._inbox, RECORDS)):
                if source >= 0:
                    self._arriving[source, Channel(group, tag)].append(Arriving(number, size, arrival))
        elif pause == LOOK_S:
            looked = select.poll()
            for link in self._links.values():
                looked.register(link.pipe, 0)
            broken = {pipe for pipe, _ in looked.poll(0)}
            self._gone = {rank for rank, link in self._links.items() if link.pipe in broken}
