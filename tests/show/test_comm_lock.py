"""The lock of a plan's communication: what it has, what changes it, and what `ssdsl check` says then."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.lang.shipped import plan_path
from ssdsl.show.comm_lock import lock_path, lock_words, read_lock, section_text, write_lock
from ssdsl.show.errors import CommunicationChanged, LockUnreadable, NotLocked
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source, Span
from tests.cli.commands import Done, call

ERRORS = Path(__file__).parent.parent / "errors"
MODEL = """\
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x ** 2).mean()

def net():
    return Net(), {"x": torch.randn(8, 8)}, {"x": ("batch", "feature")}
"""
PLAN = """\
param T = 2
mesh gpus(dp = T, tp = 2)
split model by batch into dp
split model by ffn into tp
assign model to gpus
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mynet.py").write_text(MODEL)
    (tmp_path / "plan.ssp").write_text(PLAN)
    return tmp_path


def show(folder: Path, *more: str) -> Done:
    return call("show", "plan.ssp", "comm", "--model", "mynet.py:net", "--lock", *more, folder=folder)


def check(folder: Path, *more: str) -> Done:
    return call("check", "plan.ssp", "--model", "mynet.py:net", *more, folder=folder)


def test_a_lock_says_what_is_communicated_and_for_what(folder: Path) -> None:
    done = show(folder, "--set", "T=4")
    assert done.returncode == 0 and "lines of [--model mynet.py:net --set T=4], new" in done.stdout
    text = (folder / "plan.comm").read_text()
    assert re.search(r"^# ssdsl \S+, torch \S+$", text, re.M)
    (section,) = read_lock(folder / "plan.comm").sections
    assert section.words == "--model mynet.py:net --set T=4" and section.lines[0] == "8 devices"
    assert "all_reduce over tp, forward: layers.*.down linear on gpus, 2 calls, 128 bytes" in section.lines
    assert show(folder, "--set", "T=4").stdout.strip().endswith("as before")
    assert (folder / "plan.comm").read_text() == text


def test_check_is_content_until_the_model_changes(folder: Path) -> None:
    show(folder)
    (folder / "plan.ssp").write_text(f"# a comment\n{PLAN.replace(' into', '   into')}\n")
    assert check(folder).returncode == 0
    (folder / "mynet.py").write_text(MODEL.replace("range(2)", "range(3)"))
    done = check(folder)
    assert done.returncode == 1 and "error[E0620]" in done.stderr and "plan.comm:3:1" in done.stderr
    assert "- all_reduce over tp, forward: layers.*.down linear on gpus, 2 calls, 256 bytes" in done.stderr
    assert "+ all_reduce over tp, forward: layers.*.down linear on gpus, 3 calls, 384 bytes" in done.stderr
    assert "ssdsl show plan.ssp comm --model mynet.py:net --lock" in done.stderr
    assert show(folder).stdout.strip().endswith("changed") and check(folder).returncode == 0


def test_check_fails_where_a_line_of_the_plan_changes(folder: Path) -> None:
    show(folder)
    (folder / "plan.ssp").write_text(
        PLAN.replace("split model by ffn into tp\n", "split model by ffn into tp where possible\n")
    )
    assert check(folder).returncode == 0
    (folder / "plan.ssp").write_text(PLAN.replace("split model by ffn into tp\n", ""))
    done = check(folder, "--json")
    assert done.returncode == 1 and '"E0620"' in done.stdout
    last = done.stderr.strip().split("\n")[-1]
    gone = [note for note in json.loads(last)["notes"] if note.startswith("- all_reduce over tp")]
    assert len(gone) == 2


def test_a_default_of_a_param_that_changes_is_a_change(folder: Path) -> None:
    show(folder)
    (folder / "plan.ssp").write_text(PLAN.replace("T = 2", "T = 4"))
    done = check(folder)
    assert done.returncode == 1 and "- 4 devices" in done.stderr and "+ 8 devices" in done.stderr


def test_other_settings_have_sections_of_their_own(folder: Path) -> None:
    show(folder)
    done = check(folder, "--set", "T=4")
    assert done.returncode == 0 and "warning[E0622]" in done.stderr and "--set T=4 --lock" in done.stderr
    first = (folder / "plan.comm").read_text()
    show(folder, "--set", "T=4")
    show(folder, "--precision", "bf16")
    assert (folder / "plan.comm").read_text().startswith(first)
    assert [s.words for s in read_lock(folder / "plan.comm").sections] == [
        "--model mynet.py:net",
        "--model mynet.py:net --set T=4",
        "--model mynet.py:net --precision bf16",
    ]
    (folder / "mynet.py").write_text(MODEL.replace("range(2)", "range(3)"))
    show(folder, "--set", "T=4")  # changes the section in the middle alone
    assert check(folder, "--set", "T=4").returncode == 0 and check(folder).returncode == 1
    assert len(read_lock(folder / "plan.comm").sections) == 3


def test_it_does_not_matter_where_a_command_runs(folder: Path) -> None:
    show(folder)
    (folder / "below").mkdir()
    words = "check ../plan.ssp --model ../mynet.py:net".split()
    done = call(*words, folder=folder / "below")
    assert done.returncode == 0 and "E0622" not in done.stderr


def test_a_file_of_another_name(folder: Path) -> None:
    done = show(folder, "--lock-file", "other.txt")
    assert done.returncode == 0 and not (folder / "plan.comm").exists()
    assert check(folder, "--lock-file", "other.txt").returncode == 0
    assert check(folder, "--lock-file", "nowhere.txt").returncode == 1
    assert show(folder, "--all").returncode == 2


def test_the_lock_of_a_shipped_plan_lies_in_this_folder() -> None:
    assert lock_path(plan_path("megatron")) == Path("megatron.comm")
    assert lock_path(Path("some/plan.ssp")) == Path("some/plan.comm")


@pytest.mark.parametrize("text", ["hello\n", "[--model a]\nx\n[--model a]\ny\n"])
def test_what_is_no_lock_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.comm"
    path.write_text(text)
    with pytest.raises(PlanError, match="E0621"):
        write_lock(path, Path("plan.ssp"), "--model a", ["1 device"])
    assert path.read_text() == text


def test_words_name_files_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "net.py").touch()
    monkeypatch.chdir(tmp_path)
    assert lock_words(Path("a/p.comm"), "net.py:make", {"T": 2, "M": 4}) == "--model ../net.py:make --set M=4 --set T=2"
    assert lock_words(Path("a/p.comm"), "gpt:tiny", {}, "a100x8") == "--model gpt:tiny --cluster a100x8"


LOCK = Source("plan.comm", section_text("--model gpt", ["4 devices"]))
SHOWN: tuple[Diagnostic, ...] = (
    CommunicationChanged(
        Span(LOCK, 0, 13),
        "plan.ssp",
        "- all_reduce over tp, forward: h.* add on gpus, 2 calls, 256 bytes\n"
        "+ all_reduce over tp, forward: h.* add on gpus, 3 calls, 384 bytes",
        "ssdsl show plan.ssp comm --model gpt --lock",
    ),
    LockUnreadable(
        Span(Source("plan.comm", "hello\n"), 0, 5), "plan.comm", "a section begins with a line as [--model gpt]"
    ),
    NotLocked(
        None, "plan.comm", "--model gpt --set T=4", "[--model gpt]", "ssdsl show plan.ssp comm --model gpt --lock"
    ),
)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda d: str(d.code))
def test_its_text(shown: Diagnostic, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / f"{shown.code}.err", render(shown).replace(LOCK.text.split("\n")[1], "") + "\n")
