"""Launching: results come back, errors are those of the rank that failed, and no process stays behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ssdsl import runtime
from ssdsl.run.launch import launch
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

RUNTIME = Path(runtime.__file__).parent
HEARTBEAT = ("health/__init__.py", "health/heartbeat.py", "ranks/__init__.py", "ranks/role_place.py")
PROGRAM = Path(__file__).parent / "fake_program.py"


def program(folder: Path, behaviour: str) -> Path:
    folder.mkdir()
    shutil.copy(PROGRAM, folder / "main.py")
    for name in HEARTBEAT:
        (folder / "runtime" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RUNTIME / name, folder / "runtime" / name)
    (folder / "behaviour").write_text(behaviour)
    return folder


def starts(quick: str) -> pytest.MarkDecorator:
    """Ranks are processes of their own, or copies of one: `make test` has each behaviour in one of the two."""
    marks = {name: () if name == quick else pytest.mark.slow for name in ("processes", "copies")}
    cases = [pytest.param(name == "copies", id=name, marks=slow) for name, slow in marks.items()]
    return pytest.mark.parametrize("copies", cases, indirect=True)


@pytest.fixture(autouse=True)
def quick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has failed is ended sooner."""
    monkeypatch.setattr("ssdsl.run.launch.END_S", 1.0)
    monkeypatch.setattr("ssdsl.run.processes.GRACE_S", 0.5)


@pytest.fixture
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssdsl.run.launch._forks", lambda _: request.param)


def failed(tmp_path: Path, behaviour: str, timeout_s: float = 600) -> str:
    """The diagnostic of a run that must fail and leave nothing behind."""
    training = Training(timeout_s=timeout_s)
    with pytest.raises(PlanError) as caught:
        launch(program(tmp_path / "program", behaviour), training, processes=2, out=tmp_path / "out")
    assert_gone(tmp_path / "out")
    return "\n".join(map(render, caught.value.diagnostics))


def assert_gone(out: Path) -> None:
    pids = [int(path.read_text()) for path in out.glob("pid*")]
    assert pids
    assert not [pid for pid in pids if lives(pid)]


def lives(pid: int) -> bool:
    """Whether the process runs; one that has ended may wait a moment for the machine's first process to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_results_of_all_ranks(tmp_path: Path) -> None:
    result = launch(program(tmp_path / "p", "good"), Training(steps=3), processes=2, out=tmp_path / "out")
    assert result.losses == (1.0, 0.5, pytest.approx(1 / 3))
    assert [rank.role for rank in result.ranks] == ["stage 0", "stage 1"]
    assert result.ranks[1].comm["all_reduce"].bytes == 300
    assert result.median_step_s == 0.01


def test_a_folder_of_temporary_files_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / ("x" * 90)).mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # the folder is found anew
    result = launch(program(tmp_path / "p", "good"), Training(steps=1), processes=1, out=tmp_path / "out")
    assert result.losses == (1.0,)


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_an_earlier_run_leaves_no_results(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rank0.err").write_text("old")
    launch(program(tmp_path / "p", "good"), Training(steps=1), processes=1, out=tmp_path / "out")


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_the_error_of_the_rank_that_failed(tmp_path: Path) -> None:
    text = failed(tmp_path, "raises")
    assert "error[E0502]: rank 1 failed" in text
    assert "ValueError: a number went missing" in text and "in task fwd of block 3" in text


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_ranks_that_ignore_sigterm(tmp_path: Path) -> None:
    assert "the others do not hear of it" in failed(tmp_path, "stubborn")
    assert time.time() - (tmp_path / "out" / "rank1.err").stat().st_mtime < 25  # torchrun alone would wait for 30 s


@starts("copies")
@pytest.mark.usefixtures("copies")
def test_a_killed_rank(tmp_path: Path) -> None:
    text = failed(tmp_path, "killed")
    assert "rank 1 was killed by SIGKILL" in text and "memory" in text


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_a_rank_that_exits_silently(tmp_path: Path) -> None:
    text = failed(tmp_path, "exits")
    assert "rank 1 ended with exit status 7" in text and "no such device" in text


STOPPED, LOOPS = "its process is stopped", "it works, or hangs, and waits for no other"


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize(
    ("behaviour", "said", "copies"),
    [
        ("stopped", STOPPED, True),
        ("loops", LOOPS, False),
        pytest.param("stopped", STOPPED, False, marks=pytest.mark.slow),
        pytest.param("loops", LOOPS, True, marks=pytest.mark.slow),
    ],
    indirect=["copies"],
)
def test_a_rank_that_does_not_move(tmp_path: Path, behaviour: str, said: str) -> None:
    text = failed(tmp_path, behaviour, timeout_s=2)
    assert "error[E0513]: rank 1, role stage1, has not moved for" in text and said in text
    assert re.search(r"it (is|was last seen) in step 2, forward of block 3", text)
    assert re.search(r"rank 0 since \d+ s in step 2, forward of block 3", text)


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_a_full_disk(tmp_path: Path) -> None:
    """The rank's own file has its place, so that it can still say so."""
    text = failed(tmp_path, "full")
    assert "error[E0509]: rank 1 cannot write to" in text and "No space left on device" in text
    assert "where: role stage1, step 2, forward of block 3" in text


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(PlanError, match="E0508"):
        launch(program(tmp_path / "p", "good"), Training(), processes=1, out=tmp_path / "out")


@starts("processes")
@pytest.mark.usefixtures("copies")
def test_a_broken_program(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "main.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(PlanError) as caught:
        launch(folder, Training(), processes=1, out=tmp_path / "out")
    assert "No module named 'nothing_of_this_name'" in str(render(caught.value.diagnostics[0]))


@pytest.mark.parametrize(
    ("number", "copies"),
    [
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        (signal.SIGKILL, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((signal.SIGINT, True), (signal.SIGTERM, True))),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
)
def test_no_orphans_when_the_user_ends_it(tmp_path: Path, number: signal.Signals, copies: bool) -> None:
    """Ctrl-C, a polite and an impolite kill of the launching process all end the hanging ranks.

    The tests may run where SIGINT is ignored (behind `nohup ... &`). A process hands that on to its children, and
    Python then leaves it so: a background job is not meant to hear of Ctrl-C. This one is.
    """
    folder, out = program(tmp_path / "p", "hangs"), tmp_path / "out"
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from pathlib import Path; import ssdsl.run.launch as run;"
        f"run._forks = lambda _: {copies};"
        f"run.launch(Path({str(folder)!r}), run.Training(), processes=2, out=Path({str(out)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait(lambda: len(list(out.glob("pid*"))) == 2, 60)
        time.sleep(0.2)
        os.kill(process.pid, number)
        assert process.wait(60) != 0
        wait(lambda: not any(lives(int(p.read_text())) for p in out.glob("pid*")), 60)
    finally:
        process.kill()
    assert_gone(out)


def wait(done, limit_s: float) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)
