"""Computes answers before they are asked for, in forked copies of this process on the other cores."""

import contextlib
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, Pipe
from typing import Any

MOST = 8  # copies
AT_ONCE = 3  # questions that a copy has been given and has not answered

Question = Any  # hashable; it and its answer can be pickled
Answer = Any


class Ahead:
    """Calls a function whose answers depend only on the question, and on the state of the process when this object was
    made.

    `soon` names questions that may come next, `ask` answers one. The copies end with `close`, or when this process
    ends. Where processes cannot be copied, or no more of them can (no memory, a limit), the rest is computed here.
    """

    def __init__(self, function: Callable[[Question], Answer], copies: int | None = None) -> None:
        self.function = function
        self.waiting: deque[Question] = deque()
        self.known: dict[Question, Answer] = {}
        self.at_work: dict[Question, _Copy] = {}
        self.copies: list[_Copy] = []
        with contextlib.suppress(OSError):  # as many copies as the system gives
            for _ in range(min(MOST, _other_cores()) if copies is None else copies):
                self.copies.append(_Copy(function, self.copies))

    def soon(self, questions: Iterable[Question]) -> None:
        """Replaces the list of questions that may come next, the likeliest first."""
        self.waiting = deque(q for q in questions if q not in self.known and q not in self.at_work)
        self._hand_out()

    def ask(self, question: Question) -> Answer:
        """The function's answer. Raises what the function raises. While a copy works at the question, this process
        computes another one."""
        self._hand_out()
        while (copy := self.at_work.get(question)) is not None:
            if not copy.has_answered() and self.waiting:
                self._work(self.waiting.popleft())
            else:
                self._take(copy)
            self._hand_out()
        if question not in self.known:
            self._work(question)
        return self.known[question]

    def close(self) -> None:
        """Ends the copies."""
        for copy in self.copies:
            copy.end()
        self.copies.clear()
        self.at_work.clear()

    def _work(self, question: Question) -> None:
        self.known[question] = self.function(question)

    def _hand_out(self) -> None:
        for copy in self.copies:
            while copy.asked and copy.has_answered():
                self._take(copy)
            while self.waiting and copy.is_alive and len(copy.asked) < AT_ONCE:
                question = self.waiting.popleft()
                if question not in self.known and question not in self.at_work:
                    copy.give(question)
                    self.at_work[question] = copy

    def _take(self, copy: "_Copy") -> None:
        """Waits for the next answer of a copy. If the copy has ended, the questions that it had are free again."""
        try:
            answer = copy.pipe.recv()
        except (EOFError, OSError):
            copy.is_alive = False
            for question in copy.asked:
                del self.at_work[question]
            copy.asked.clear()
        else:
            question = copy.asked.popleft()
            self.known[question] = answer
            del self.at_work[question]


class _Copy:
    """A forked process that answers questions in order; `asked` are those that it has not answered yet. Raises OSError
    where the system gives no further process."""

    def __init__(self, function: Callable[[Question], Answer], others: Iterable["_Copy"]) -> None:
        self.asked: deque[Question] = deque()
        self.is_alive = True
        self.pipe, theirs = Pipe()
        with warnings.catch_warnings():  # about other threads: they hold no lock that the copy needs
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.process = os.fork()
            except OSError:
                self.pipe.close()
                theirs.close()
                raise
        if not self.process:
            for pipe in (self.pipe, *(other.pipe for other in others)):
                pipe.close()  # so that each copy sees the end of its pipe when this process ends
            _answer(function, theirs)
        theirs.close()

    def give(self, question: Question) -> None:
        with contextlib.suppress(OSError):  # the copy has ended: the next `recv` reports it
            self.pipe.send(question)
        self.asked.append(question)

    def has_answered(self) -> bool:
        return self.pipe.poll()

    def end(self) -> None:
        self.pipe.close()
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def _answer(function: Callable[[Question], Answer], pipe: Connection) -> None:
    """The main loop of a copy. It ends when the pipe closes, or when the function fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    try:
        while True:
            pipe.send(function(pipe.recv()))
    finally:
        os._exit(0)


def _other_cores() -> int:
    """The number of cores that this process may use, less one; 0 where copying a process is not safe."""
    return len(os.sched_getaffinity(0)) - 1 if sys.platform == "linux" else 0
