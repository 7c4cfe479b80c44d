"""A kept graph is taken as long as all that its model was made from is as it was, and is captured anew otherwise."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ssdsl.model.cache import entries
from ssdsl.model.captured import Captured, ModelRequest, captured
from ssdsl.model.graph_text import graph_text
from ssdsl.text.diagnostic import PlanError

FILE = """
import {imports}
import torch
from torch import nn
from parts import WIDTH, Base

{before}

class Net(Base):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, WIDTH)
        {inside}

    def forward(self, x):
        return self.end(self.fc(x))


def net():
    return Net(), {{"x": torch.zeros(2, 4)}}, {{"x": ("batch", "feature")}}
"""
PARTS = """
from torch import nn
import more

WIDTH = 6
scale = more.SCALE


class Base(nn.Module):
    def end(self, x):
        return (scale * x).sum()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    here = tmp_path / "model"
    here.mkdir()
    monkeypatch.chdir(here)
    write(here)
    return here


def write(folder: Path, imports: str = "os", before: str = "", inside: str = "pass") -> None:
    (folder / "mine.py").write_text(FILE.format(imports=imports, before=before, inside=inside))
    (folder / "parts.py").write_text(PARTS)
    (folder / "more.py").write_text("SCALE = 2.0\n")


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    yield


def asked(spec: str = "mine.py:net", **more: object) -> Captured:
    """As another process would ask: no module of the user's is loaded. What a capture adds to the path is taken
    away by the next one."""
    try:
        return captured(ModelRequest(spec, **more), working)  # type: ignore[arg-type]
    finally:
        for name in ("mine", "parts", "more", "ssdsl_user_mine"):
            sys.modules.pop(name, None)


def is_kept(spec: str = "mine.py:net", **more: object) -> bool:
    """Whether the graph is there without the model's having been built."""
    return asked(spec, **more).built is None


def test_a_graph_is_kept() -> None:
    first = asked()
    assert first.built is not None and not first.not_kept
    second = asked()
    assert second.built is None and graph_text(second.graph) == graph_text(first.graph)
    assert (second.comparison, second.is_compared) == (first.comparison, first.is_compared)
    assert second.model.module.fc.weight.shape == (6, 4)


@pytest.mark.parametrize("options", [{"seed": 1}, {"precision": "bf16"}, {"meta": True}, {"trains": True}])
def test_another_question_has_another_answer(options: dict[str, object]) -> None:
    asked()
    assert not is_kept(**options) and is_kept(**options) and is_kept()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine.py", "zeros(2, 4)", "zeros(4, 4)"),  # the file itself
        ("parts.py", "WIDTH = 6", "WIDTH = 8"),  # a constant of another file
        ("parts.py", "(scale * x)", "(scale + x)"),  # a method of a parent class
        ("more.py", "2.0", "3.0"),  # what that file imports
    ],
)
def test_what_is_imported_is_compared(folder: Path, name: str, old: str, new: str) -> None:
    asked()
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    assert not is_kept() and is_kept()
    (folder / name).write_text(text)
    assert not is_kept()


READS = {
    "to read and write": ("json", "", 'self.n = json.load(open("config.json", "r+"))["n"]'),
    "in a thread": (
        "concurrent.futures",
        "",
        'concurrent.futures.ThreadPoolExecutor(4).submit(lambda: open("config.json").read()).result()',
    ),
    "after it was opened to append": ("os", "", 'open("config.json", "a").close(); open("config.json").read()'),
    "open": ("json", "", 'self.n = json.load(open("config.json"))["n"]'),
    "at import": ("json, pathlib", 'N = json.loads(pathlib.Path("config.json").read_text())', "pass"),
    "with os": ("os", "", 'f = os.open("config.json", os.O_RDONLY); os.read(f, 9); os.close(f)'),
    "toml": ("tomllib, pathlib", "", 'tomllib.loads("n = 1"); pathlib.Path("config.json").open("rb").read()'),
}


@pytest.mark.parametrize("way", READS)
def test_files_that_are_read_are_compared(folder: Path, way: str) -> None:
    write(folder, *READS[way])
    (folder / "config.json").write_text('{"n": 1}')
    asked()
    assert is_kept()
    (folder / "config.json").write_text('{"n": 2}')
    assert not is_kept() and is_kept()


@pytest.mark.parametrize(
    "expression", ['os.environ.get("WIDER")', 'os.getenv("WIDER", "2")', '"WIDER" in os.environ', "dict(os.environ)"]
)
def test_variables_that_are_read_are_compared(folder: Path, expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "os", "", f"self.wider = {expression}")
    monkeypatch.delenv("WIDER", raising=False)
    asked()
    assert is_kept()
    monkeypatch.setenv("WIDER", "3")
    assert not is_kept() and is_kept()
    monkeypatch.setenv("WIDER", "4")
    assert not is_kept() and is_kept()


def test_the_number_of_variables_is_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, inside="self.variables = len(os.environ)")
    asked()
    assert is_kept()
    monkeypatch.setenv("WIDER", "3")
    assert not is_kept()


HELPER = """
import importlib.util
spec = importlib.util.spec_from_file_location("helper", "helper.py")
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
"""


def test_a_module_that_is_loaded_by_its_path_is_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # of what was compiled before, only that is opened
    write(folder, before=HELPER)
    (folder / "helper.py").write_text("WIDTH = 1\n")
    asked()
    write(folder, before=f"{HELPER}# changed")
    asked()
    assert is_kept()
    (folder / "helper.py").write_text("WIDTH = 22\n")
    assert not is_kept()


@pytest.mark.parametrize(
    ("expression", "change"),
    [
        ('os.path.exists("flag")', lambda: Path("flag").touch()),
        ('os.path.getsize("weights.bin")', lambda: Path("weights.bin").write_bytes(b"12")),
        ('os.path.realpath("latest")', lambda: (Path("latest").unlink(), Path("latest").symlink_to("more.py"))),
        ('os.access("weights.bin", os.R_OK)', lambda: Path("weights.bin").unlink()),
    ],
)
def test_what_is_asked_of_a_path_is_compared(folder: Path, expression: str, change: Callable[[], object]) -> None:
    Path("weights.bin").write_bytes(b"1")
    Path("latest").symlink_to("parts.py")
    write(folder, inside=f"self.found = {expression}")
    asked()
    assert is_kept()
    change()
    assert not is_kept() and is_kept()


def test_a_module_that_appears_is_seen(folder: Path) -> None:
    write(folder, before="try:\n    import extra\nexcept ImportError:\n    pass")
    asked()
    assert is_kept()
    (folder / "extra.py").write_text("")
    assert not is_kept()


@pytest.mark.parametrize("appears", ["helper/__init__.py", "helper.py", "helper.pyc", "other/helper.py"])
def test_what_python_would_import_instead_is_seen(folder: Path, appears: str) -> None:
    path = "import sys\nsys.path[:0] = ['lib', 'other']\n"
    write(folder, before=f"{path}try:\n    import helper\nexcept ImportError:\n    pass")
    (folder / "helper").mkdir()  # no package yet
    asked()
    assert is_kept()
    (folder / appears).parent.mkdir(exist_ok=True)
    (folder / appears).write_bytes(b"")
    with contextlib.suppress(PlanError):  # an empty .pyc is none
        assert not is_kept()


def test_a_module_of_torch_that_is_loaded_is_compared(folder: Path) -> None:
    write(folder, inside='self.width = int(torch.jit.load("saved.pt").bias.numel())')
    torch.jit.script(torch.nn.Linear(1, 2)).save("saved.pt")
    asked()
    assert is_kept()
    torch.jit.script(torch.nn.Linear(1, 3)).save("saved.pt")
    assert not is_kept()


def test_the_next_capture_of_a_process_imports_what_has_changed(folder: Path) -> None:
    first = captured(ModelRequest("mine.py:net"), working)
    (folder / "parts.py").write_text(PARTS.replace("WIDTH = 6", "WIDTH = 16"))
    second = captured(ModelRequest("mine.py:net"), working)
    assert (first.model.module.fc.weight.shape[0], second.model.module.fc.weight.shape[0]) == (6, 16)
    assert is_kept()


def test_the_next_capture_of_a_process_imports_folders_without_init_again(folder: Path) -> None:
    names = [f"outer{k}" for k in range(4)]  # one of them at least is forgotten before the folder in it
    for name in names:
        (folder / name / "inner").mkdir(parents=True)
        (folder / name / "inner" / "sizes.py").write_text("HIDDEN = 3\n")
    write(folder, ", ".join(f"{name}.inner.sizes" for name in names))
    captured(ModelRequest("mine.py:net"), working)
    write(folder)
    assert captured(ModelRequest("mine.py:net"), working).built is not None


def test_the_next_capture_of_a_process_finds_what_is_kept(folder: Path) -> None:
    captured(ModelRequest("mine.py:net"), working)
    assert captured(ModelRequest("mine.py:net"), working).built is None


def test_a_message_of_logging_is_no_reason(folder: Path) -> None:
    write(folder, "logging", inside='logging.getLogger("mine").error("the time of a message")')
    assert not asked().not_kept and is_kept()


def test_a_run_without_assertions_has_another_answer() -> None:
    asked()
    known = entries._versions()["python"]
    run = [sys.executable, "-O", "-c", "from ssdsl.model.cache import entries; print(entries._versions()['python'])"]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip() != known


def test_a_link_to_another_folder_is_seen(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    Path("current").symlink_to(folder)
    spec = "current/mine.py:net"
    asked(spec)
    assert is_kept(spec)
    Path("current").unlink()
    Path("current").symlink_to(tmp_path / "other")
    assert not is_kept(spec)


@pytest.mark.parametrize(
    ("imports", "inside"),
    [
        ("os", 'self.all = {k: v for k, v in os.environ.items() if k.startswith("MINE")}'),
        ("os", 'os.environ["MINE"] = "2"; self.mine = os.environ["MINE"]'),
        (
            "tempfile, pathlib",
            "p = pathlib.Path(tempfile.mkdtemp(), 'a'); p.write_text('b'); p.read_text()",
        ),
        ("random, numpy", "random.seed(0); numpy.random.seed(1); torch.manual_seed(2)"),
    ],
)
def test_what_the_model_makes_itself_is_no_source(
    folder: Path, imports: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINE", raising=False)
    write(folder, imports, "", inside)
    assert not asked().not_kept
    monkeypatch.delenv("MINE", raising=False)
    assert is_kept()


def test_folders_that_are_listed_are_compared(folder: Path) -> None:
    write(folder, "os", "", 'self.shards = len(os.listdir("data"))')
    (folder / "data").mkdir()
    asked()
    assert is_kept()
    (folder / "data" / "shard").touch()
    assert not is_kept() and is_kept()


ESCAPES = {
    "the clock": ("time", "", "self.t = time.time()"),
    "the clock of datetime": ("datetime", "", "self.t = datetime.datetime.now().year"),
    "another process": ("subprocess", "", 'subprocess.run(["true"])'),
    "a connection": ("socket", "", 'socket.getaddrinfo("127.0.0.1", 80)'),
    "random numbers of Python without a seed": ("random", "", "random.random()"),
    "random numbers of NumPy without a seed": ("numpy", "", "numpy.random.rand()"),
    "random numbers of torch outside of the model's function": ("os", "DRAWN = torch.rand(())", "pass"),
    "a random number": ("uuid", "", "uuid.uuid4()"),
    "a random number of torch": ("os", "", "torch.seed()"),
    "the command line": ("argparse", "", "argparse.ArgumentParser().parse_known_args()"),
    "the command line itself": ("sys", "", 'self.wide = "--wide" in sys.argv'),
    "a database": ("sqlite3", "", 'sqlite3.connect(":memory:")'),
    "files by an extension": ("os", "", "self.load = lambda o: o.from_file()"),
}


@pytest.mark.parametrize("what", ESCAPES)
def test_what_cannot_be_compared_is_not_kept(folder: Path, what: str) -> None:
    if "NumPy" in what:
        pytest.importorskip("numpy")
    write(folder, *ESCAPES[what])
    first = asked()
    reason = (
        what.partition(" of ")[0] if what.startswith(("the clock", "a random number")) else what.removesuffix(" itself")
    )
    assert first.not_kept == f"it read {reason}"
    assert not is_kept()


def test_packages_and_versions_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked()
    versions = entries._versions()
    for name in versions:
        with monkeypatch.context() as patch:
            patch.setattr(entries, "_versions", lambda name=name: versions | {name: "another"})
            assert entries.find(entries.question({"spec": "mine.py:net"})) is None
            assert not is_kept()
        asked()
    assert is_kept()


def test_a_damaged_entry_is_made_again() -> None:
    asked()
    (path,) = entries.folder().glob("*.graph")
    whole = path.read_bytes()
    flipped = (whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in range(5, len(whole), len(whole) // 60))
    for damage in (b"", whole[:200], b"something else"):
        path.write_bytes(damage)
        assert not is_kept() and is_kept()
    for damage in flipped:  # found, or not: never an error
        path.write_bytes(damage)
        entries.find(entries.question({"spec": "mine.py:net"}))
        entries.entries()


def test_old_entries_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked()
    (first,) = entries.folder().glob("*.graph")
    os.utime(first, (1, 1))
    monkeypatch.setattr(entries, "MOST", 5 * first.stat().st_size // 2)  # two of them: they differ by some bytes
    for seed in (1, 2):
        asked(seed=seed)
    kept = entries.entries()
    assert len(kept) == 2 and first not in {entry.path for entry in kept}
    assert entries.clear() == 2 and not entries.entries()


def test_where_nothing_can_be_written_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert not asked().not_kept and not is_kept()


def test_the_environment_and_the_clock_are_left_as_they_were(folder: Path) -> None:
    import time

    before = type(os.environ), time.time, time.perf_counter
    asked()
    write(folder, inside="raise RuntimeError")
    with pytest.raises(Exception, match="E0308"):
        asked()
    assert (type(os.environ), time.time, time.perf_counter) == before
