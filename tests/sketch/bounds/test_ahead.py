"""Copies of a process answer as it would; what they cannot answer it answers itself; none is left behind."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ssdsl.sketch.bounds.ahead import Ahead

HERE = os.getpid()


@contextmanager
def ahead(function: object, copies: int) -> Iterator[Ahead]:
    made = Ahead(function, copies)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended may wait to be asked how."""
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_the_end_of(process: int) -> None:
    until = time.monotonic() + 60
    while is_alive(process):
        assert time.monotonic() < until
        time.sleep(0.01)


def in_a_copy(number: int) -> tuple[int, bool]:
    time.sleep(0.002)
    return number * number, os.getpid() != HERE


def ends_at_three(number: int) -> int:
    if number == 3 and os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_each_question_has_its_answer(copies: int) -> None:
    with ahead(in_a_copy, copies) as asked:
        asked.soon(range(40))
        found = [asked.ask(number) for number in (*range(20), *range(60, 19, -1))]
    assert [square for square, _ in found] == [n * n for n in (*range(20), *range(60, 19, -1))]
    assert any(elsewhere for _, elsewhere in found) == bool(copies)


def test_what_a_copy_takes_with_it_is_worked_out_here() -> None:
    with ahead(ends_at_three, 1) as asked:
        asked.soon([3, 4])
        assert [asked.ask(number) for number in (3, 4, 5)] == [3, 4, 5]
        assert not asked.copies[0].is_alive


@pytest.mark.parametrize("given", [0, 1])
def test_where_no_process_is_left_it_is_worked_out_here(given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses all copies, or all but the first: the answers are the same, and no pipe stays open."""
    forks, left = os.fork, [None] * given

    def fork() -> int:
        if not left:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        left.pop()
        return forks()

    monkeypatch.setattr(os, "fork", fork)
    before = len(os.listdir("/proc/self/fd"))
    with ahead(in_a_copy, 3) as asked:
        assert len(asked.copies) == given
        asked.soon(range(10))
        assert [asked.ask(number)[0] for number in range(12)] == [n * n for n in range(12)]
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_fails_in_a_copy_fails_here() -> None:
    with ahead(lambda number: 1 // number, 1) as asked:
        asked.soon([0])
        with pytest.raises(ZeroDivisionError):
            asked.ask(0)


def test_copies_end_with_the_search_and_with_its_process() -> None:
    with ahead(in_a_copy, 2) as asked:
        processes = [copy.process for copy in asked.copies]
        assert all(map(is_alive, processes))
    assert not any(map(is_alive, processes))
    reading, writing = os.pipe()
    if not (child := os.fork()):
        made = Ahead(in_a_copy, 2)
        os.write(writing, " ".join(str(copy.process) for copy in made.copies).encode())
        time.sleep(60)
        os._exit(0)
    orphans = [int(word) for word in os.read(reading, 100).split()]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for orphan in orphans:
        wait_for_the_end_of(orphan)
