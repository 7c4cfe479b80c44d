"""Graphs in files and kept graphs, as commands take them: without torch."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ssdsl.model import graph_errors
from ssdsl.text.diagnostic import REGISTRY
from tests.cli.commands import Done, call
from tests.cli.test_cli import MODEL
from tests.preloaded import Preloaded

ROOT = Path(__file__).parent.parent.parent
ERRORS = ROOT / "tests" / "errors"
PLAN = """\
param D = 2
mesh gpus(dp = D)
split model by batch into dp
assign model to gpus
"""
WITHOUT = """\
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
from ssdsl.cli.main import main

def ended():
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)

ends = []
for words in json.loads(sys.argv[1]):
    sys.argv, out, err = ["ssdsl", *words], io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = ended()
    ends.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(ends))
"""
COMMANDS = [
    "check plan.ssp --model net.graph --cluster a100x8",
    "prove plan.ssp --model net.graph",
    "simulate plan.ssp --model net.graph --cluster a100x8",
    "show plan.ssp dims --model net.graph",
    "show plan.ssp program --model net.graph",
    "show plan.ssp schedule --model net.graph",
    "sweep plan.ssp --model net.graph --set D=2,4 --cluster a100x8",
    "search plan.ssp --model net.graph --devices 1..4 --cluster a100x8 --out found.ssp",
    "diff plan.ssp plan.ssp --model net.graph --set D=4",
    "compile plan.ssp --model net.graph --out program",
    "check plan.ssp --model mine.py:net",  # kept by the capture of the fixture
]


@pytest.fixture(scope="module")
def folder(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a plan, and the model's graph."""
    found = tmp_path_factory.mktemp("graphs")
    (found / "mine.py").write_text(MODEL)
    (found / "plan.ssp").write_text(PLAN)
    command = [preloaded.executable, "-m", "ssdsl", "capture", "mine.py:net", "--out", "net.graph"]
    done = subprocess.run(command, cwd=found, env=environment(found), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("net.graph: "), done.stderr
    return found


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "XDG_CACHE_HOME": str(folder / "cache")}


def without_torch(commands: Iterable[str], folder: Path) -> list[Done]:
    """Runs commands in a process that cannot import torch."""
    words = json.dumps([command.split() for command in commands])
    command = [sys.executable, "-c", WITHOUT, words]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [Done(*ended) for ended in json.loads(done.stdout)]


def ssdsl(*words: str, folder: Path) -> Done:
    """Runs a command in this process."""
    return call(*words, folder=folder, XDG_CACHE_HOME=str(folder / "cache"))


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, Done]:
    """How each command ended, all of them in one process without torch."""
    return dict(zip(COMMANDS, without_torch(COMMANDS, folder), strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_do_not_run_need_no_torch(command: str, ended: dict[str, Done]) -> None:
    done = ended[command]
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_graph_says_what_its_model_says(folder: Path) -> None:
    graph, model = (
        ssdsl("check", "plan.ssp", "--model", name, "--json", folder=folder).stdout
        for name in ("net.graph", "mine.py:net")
    )
    assert json.loads(graph) == json.loads(model)
    assert "compared with the module once" in json.loads(graph)["capture"]


WRONG = {
    "E0319": "check plan.ssp --model other.graph",
    "E0320": "run plan.ssp --model net.graph --steps 2",
    "E0321": "capture function.py:net --out function.graph",
    "E0323": "check plan.ssp --model net.graph --precision bf16",
    "E0322": "check plan.ssp --model another.py:net",
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said(code: str, folder: Path, golden: Callable[[Path, str], None]) -> None:
    (folder / "function.py").write_text(OWN_OPERATOR)
    if code == "E0322":
        (done,) = without_torch([WRONG[code]], folder)
    else:
        done = ssdsl(*WRONG[code].split(), folder=folder)
    assert done.returncode == 1 and not (folder / "function.graph").exists()
    golden(ERRORS / f"{code}.err", done.stderr)


OWN_OPERATOR = """\
import ssdsl
import torch

@torch.library.custom_op("function_of_row::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)

twice.register_autograd(lambda ctx, gradient: 2 * gradient)

OPS = [
    ssdsl.Op("function_of_row::twice", "... -> ...", module="function", text=lambda given: f"2 * {given['x']}")
]

def net():
    class Net(torch.nn.Linear):
        def forward(self, x):
            return twice(super().forward(x)).sum()

    return Net(8, 8), {"x": torch.randn(4, 8)}, {"x": ("batch", "feature")}
"""


def test_all_mistakes_are_shown() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == graph_errors.__name__}
    assert own == set(WRONG) and all(REGISTRY[code].__doc__ for code in own)


def test_cache_lists_and_clears(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "cache", tmp_path / "cache")
    shutil.copy(folder / "mine.py", tmp_path)
    listed = ssdsl("cache", "--json", folder=tmp_path)
    assert [row["model"] for row in json.loads(listed.stdout)] == ["mine.py:net"], listed.stderr
    assert ssdsl("cache", folder=tmp_path).stdout.startswith("1 graph, ")
    shutil.copytree(tmp_path / "cache", tmp_path / "again")
    assert ssdsl("cache", "--clear", folder=tmp_path).stdout == "removed 1 graph\n"
    shutil.rmtree(tmp_path / "cache")
    shutil.move(tmp_path / "again", tmp_path / "cache")
    assert json.loads(ssdsl("cache", "--clear", "--json", folder=tmp_path).stdout) == {"removed": 1}
    assert json.loads(ssdsl("cache", "--json", folder=tmp_path).stdout) == []


def test_without_the_cache_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "plan.ssp").write_text(PLAN)
    for words in (["--no-cache"], []):
        done = ssdsl("check", "plan.ssp", "--model", "mine.py:net", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(ssdsl("cache", "--json", folder=tmp_path).stdout)) == (0 if words else 1)


def test_what_is_not_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{MODEL}\nimport time\nSTART = time.time()\n")
    (tmp_path / "plan.ssp").write_text(PLAN)
    done = ssdsl("check", "plan.ssp", "--model", "mine.py:net", folder=tmp_path)
    said = "the graph of mine.py:net is not kept for the next command: it read the clock"
    assert done.returncode == 0 and said in " ".join(done.stderr.split())
