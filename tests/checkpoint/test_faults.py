"""A save that is cut off anywhere leaves the old checkpoint or the new one; a full disk is an error, the old one stays.

Every call to the disk of every rank is tried, in a folder in which a save has most to do: it keeps one checkpoint, so
two go, and a dead run has left a half-written one.
"""

import os
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.errors import EngineError
from tests.checkpoint import parts
from tests.checkpoint.conftest import Together, together
from tests.checkpoint.faults import Disk, Killed

RANKS, OLD, NEW = 2, 2, 3


def save(run: Path, seed: int, disk: Disk | None = None, keep: int = 1) -> list[Any]:
    disk = disk or Disk()

    def work(control: Together) -> None:
        with disk.as_rank(control.rank):
            saver = Saver(control, background=False)
            saver.save(run, seed, parts.content(seed, control.rank, RANKS), keep)

    with disk.mounted():
        return together(RANKS, work)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder before the save."""
    run = tmp_path_factory.mktemp("before") / "run"
    for seed in (1, OLD):
        assert save(run, seed, keep=2) == [None] * RANKS
    half = run / "step-00000077"
    half.mkdir()
    (half / "__0_0.distcp").write_text("half")
    return run


@pytest.fixture(scope="module")
def calls(before: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """What each rank does to the disk in the save."""
    run = tmp_path_factory.mktemp("calls") / "run"
    shutil.copytree(before, run)
    disk = Disk()
    assert save(run, NEW, disk) == [None] * RANKS
    assert sorted(p.name for p in run.iterdir()) == [".saving", "latest", "step-00000003"]
    return disk.log


def places(calls: list[tuple[int, str]]) -> list[tuple[int, int]]:
    return [(rank, at) for rank in range(RANKS) for at in range(sum(r == rank for r, _ in calls))]


def tree(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() if p.is_file() else b"" for p in sorted(run.rglob("*"))}


def found(run: Path) -> int:
    """The step of the checkpoint that loads, all of whose tensors are right."""
    checkpoint = Checkpoint.open(run)
    step = checkpoint.facts["steps"]
    parts.check(checkpoint.whole, step)
    assert isinstance(step, int)
    return step


def test_the_calls_are_those_of_a_save(calls: list[tuple[int, str]]) -> None:
    """What follows is about these: each rank writes and syncs a file, the first one puts the rest in place."""
    ours = [what for rank, what in calls if rank == 1]
    assert ours[0] == "open" and set(ours[1:-1]) == {"write"} and ours[-1] == "fsync"
    first = [what for rank, what in calls if rank == 0]
    assert first.count("fsync") >= 9 and {"mkdir", "rename", "replace", "unlink", "rmdir"} < set(first)
    assert first.index("replace") < len(first) - 1 - first[::-1].index("rmdir")  # removed after `latest` is replaced


@pytest.mark.parametrize(
    ("everybody", "every"),
    [(False, 3), *(pytest.param(everybody, 1, marks=pytest.mark.slow) for everybody in (False, True))],
    ids=["one rank dies, each third call", "one rank dies", "all ranks die"],
)
def test_killed_anywhere(
    before: Path, calls: list[tuple[int, str]], tmp_path: Path, everybody: bool, every: int
) -> None:
    ends = set()
    for rank, at in places(calls)[::every]:
        run = tmp_path / f"{rank}-{at}"
        shutil.copytree(before, run)
        disk = Disk(rank, at, everybody=everybody)
        ended = save(run, NEW, disk)
        assert disk.struck and isinstance(ended[rank], Killed), (rank, at)
        assert all(isinstance(e, Killed | EngineError) for e in ended), ended
        ends.add(found(run))
        assert save(run, NEW) == [None] * RANKS  # the run goes on: from whichever it found
        assert found(run) == NEW
        assert sorted(p.name[:13] for p in run.iterdir()) == [".saving", "latest", "step-00000003"]
        shutil.rmtree(run)
    assert ends == {OLD, NEW}


@pytest.mark.slow
def test_a_full_disk_anywhere(before: Path, calls: list[tuple[int, str]], tmp_path: Path) -> None:
    for rank, at in places(calls):
        run = tmp_path / f"{rank}-{at}"
        shutil.copytree(before, run)
        disk = Disk(rank, at, full=True)
        ended = save(run, NEW, disk)
        assert disk.struck
        if any(ended):  # what frees space works on a full disk, so the save may end well
            assert all(isinstance(e, EngineError) for e in ended), ended
            assert all(f"cannot save to `{run}`: its disk is full\n  help: free" in str(e) for e in ended), ended
            parts.check(Checkpoint.open(run / "step-00000002").whole, OLD)
        assert found(run) in (OLD, NEW)
        assert save(run, NEW) == [None] * RANKS
        assert found(run) == NEW
        shutil.rmtree(run)


KINDS = {"os.mkdir": "mkdir", "os.rename": "rename", "os.remove": "unlink", "os.rmdir": "rmdir"}


class Audit:
    """What Python itself says that ranks do to files under a folder."""

    def __init__(self, run: Path, disk: Disk) -> None:
        self.run, self.disk, self.seen = str(run), disk, Counter[str]()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() not in self.disk.ranks:
            return
        if event in KINDS:
            self.seen[KINDS[event]] += 1
        elif event == "open" and str(arguments[0]).startswith(self.run) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self.seen["open"] += 1


def test_no_call_goes_past_the_disk(before: Path, tmp_path: Path) -> None:
    """The disk of these tests is the whole disk."""
    run = tmp_path / "run"
    shutil.copytree(before, run)
    disk = Disk()
    audit = Audit(run, disk)
    sys.addaudithook(audit)
    assert save(run, NEW, disk) == [None] * RANKS
    same = {"replace": "rename", "remove": "unlink"}
    counted = Counter(same.get(what, what) for _, what in disk.log)
    assert audit.seen == {what: n for what, n in counted.items() if what not in ("write", "fsync")}


def test_all_is_on_the_disk_before_it_counts(before: Path, tmp_path: Path) -> None:
    """When `latest` is replaced, each file and each name that it leads to has been synced since it changed."""
    run = tmp_path / "run"
    shutil.copytree(before, run)
    disk = Disk()
    assert save(run, NEW, disk) == [None] * RANKS
    assert disk.unsynced == [set()]
