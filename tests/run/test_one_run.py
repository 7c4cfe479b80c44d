"""A folder has one run at a time: a second one is refused, whatever has ended does not count."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssdsl.cli.main import main
from ssdsl.cli.training import workplace
from ssdsl.run.errors import OtherRunInFolder
from ssdsl.run.launch import Nodes
from ssdsl.run.one_run import one_run
from ssdsl.text.diagnostic import PlanError

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(8, 16)

    def forward(self, x):
        return self.one(x).square().mean()

def net():
    return Net(), {"x": torch.randn(4, 8)}, {"x": ("batch", "feature")}
"""
OTHER = """
import sys, time
from pathlib import Path
from ssdsl.run.one_run import one_run

with one_run(Path(sys.argv[1])):
    print("there", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process whose run has the folder."""
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        yield process
        process.kill()


def test_the_second_run_is_refused(
    other: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first's process id, and nothing of the first is touched."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics.jsonl").write_text("of the first")
    (tmp_path / "net.py").write_text(MODEL)
    words = ["run", "data_parallel", "--model", f"{tmp_path}/net.py:net", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["ssdsl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 1 and "E0540" in err and f"process {other.pid} on" in err
    assert (tmp_path / "results" / "metrics.jsonl").read_text() == "of the first"
    assert not (tmp_path / "program").exists()


def test_a_dead_process_has_no_run(other: "subprocess.Popen[str]", tmp_path: Path) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / ".lock").read_text().startswith(f"process {other.pid} on")
    with one_run(tmp_path):
        pass
    with one_run(tmp_path):  # one after the other, as when a run is resumed
        pass


def test_nodes_share_a_folder(tmp_path: Path) -> None:
    """Each has its own in it; the same node twice is two runs."""
    one, two = Nodes(2, 0, "n:1"), Nodes(2, 1, "n:1")
    with workplace(str(tmp_path), one) as first, workplace(str(tmp_path), two) as second:
        assert (first, second) == (tmp_path / "node0", tmp_path / "node1")
        with pytest.raises(PlanError) as refused, workplace(str(tmp_path), two):
            pass
    (found,) = refused.value.diagnostics
    assert isinstance(found, OtherRunInFolder) and found.folder == str(tmp_path / "node1")


def test_a_disk_without_locks_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with one_run(tmp_path), one_run(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="file") as refused, workplace(str(tmp_path / "file")):
        pass
    assert refused.value.diagnostics[0].code == "E0508"


def test_what_a_killed_run_has_left_is_removed(
    other: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once no process has it, and the lock is not of the last minute. What no run has made stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("ssdsl-left", "ssdsl-new", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock").write_text("process 1")
    (tmp_path / "ssdsl-mine").mkdir()
    (tmp_path / "ssdsl-held").symlink_to(tmp_path)  # `other` has the lock in it
    for name in ("ssdsl-left", "theirs", "."):
        os.utime(tmp_path / name / ".lock", (0, 0))
    with workplace(None) as folder:
        assert folder.name.startswith("ssdsl-")
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "ssdsl-new", "ssdsl-mine", "ssdsl-held", "theirs"}
