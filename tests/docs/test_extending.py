"""docs/extending.md shows commits that work: they apply to the sources, and what they add works there."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COPIED = (
    *("ssdsl", "grammar", "stdlib", "examples/models", "tests/preloaded"),
    *("tests/conftest.py", "tests/plan/conftest.py", "tests/models/tiny.py", "tests/model/rule_cases.py"),
)
COMMIT = re.compile(r"<!-- commit: (\w+) -->\n```diff\n(.*?)```", re.DOTALL)
COMMITS = dict(COMMIT.findall((ROOT / "docs" / "extending.md").read_text("utf-8")))
Run = Callable[..., str]

# Trains as a plan says, in this process, and prints the programs, their functions and whether the numbers are right.
TRAINED = """
import sys
from pathlib import Path
import torch
from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_plan
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.run.verify.verify import difference, verify_dumps

torch.set_num_threads(1)
model = load(sys.argv[1])
program = compile_plan(Path(sys.argv[2]), capture(model), {}).program
training = Training(steps=2, optimizer="sgd", lr=0.1)
finished = run_in_process(program_of(program, model), training)
print(*program_files(program).values())
print(difference(verify_dumps(model, training, finished.losses, finished.dumps)) or "equal")
"""
PRODUCTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(6, 16))

    def forward(self, x):
        return torch.addbmm(self.bias, x, self.weight.expand(4, 8, 16)).square().mean()

def net():
    return Net(), {"x": torch.randn(4, 6, 8)}, {"x": ("batch", "seq", "width")}
"""
BY_BATCH_AND_WIDTH = """
mesh gpus(dp = 2, tp = 2)
split model by batch into dp
split model by width into tp
assign model to gpus
"""
BY_FFN = "mesh gpus(tp = 2)\nsplit model by ffn into tp\nassign model to gpus\n"
IN_STAGES = """
mesh gpus(pp = 2)
assign model["layers.0"] to gpus[pp = 0]
assign model - model["layers.0"] to gpus[pp = 1]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with all commits, each of which applies to the sources alone, too. Compiled sources are
    copied, too: a file keeps its time, so Python compiles again what the commits change."""
    folder = tmp_path_factory.mktemp("extended")
    for each in COPIED:
        source, target = ROOT / each, folder / each
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.pyc.*"))  # which others are writing
        else:
            shutil.copy(source, target)
    for name, text in COMMITS.items():
        (folder / f"{name}.diff").write_text(text)
    for check in ("--check",), ():
        for name in COMMITS:
            _run(folder, "git", "apply", "-C1", *check, f"{name}.diff")
    return folder


@pytest.fixture
def run(folder: Path, python: str) -> Run:
    """Runs Python in the copy, and returns what it prints."""
    return lambda *arguments: _run(folder, python, *arguments)


@pytest.fixture
def trained(folder: Path, run: Run) -> Callable[[str, str], str]:
    def train(model: str, plan: str) -> str:
        (folder / "plan.ssp").write_text(plan)
        (folder / "products.py").write_text(PRODUCTS)
        said = run("-c", TRAINED, model, "plan.ssp")
        assert said.endswith("equal\n")
        return said

    return train


def test_an_operator(trained: Callable[[str, str], str]) -> None:
    said = trained("products.py:net", BY_BATCH_AND_WIDTH)
    assert "torch.addbmm(" in said and "all_reduce" in said


@pytest.mark.slow
def test_a_collective(run: Run, trained: Callable[[str, str], str]) -> None:
    assert "2 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/lower/test_one_shot.py")
    assert "one_shot_all_reduce(tp)" in trained("tests/models/tiny.py:chain", BY_FFN)


@pytest.mark.slow
def test_a_pass(run: Run, trained: Callable[[str, str], str]) -> None:
    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/lower/test_name_functions.py")
    assert "def block0_layers_0(" in trained("tests/models/tiny.py:chain", IN_STAGES)


@pytest.mark.slow
def test_a_view(run: Run) -> None:
    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/show/tables/test_weights.py")
    assert "weights" in run("-m", "ssdsl", "show", "--help")


def test_a_model(run: Run, trained: Callable[[str, str], str]) -> None:
    trained("mlp:tiny,hidden=32", BY_FFN)
    assert "mlp:large" in run("-m", "ssdsl", "models")


def test_a_cluster(run: Run) -> None:
    assert run("-c", "from ssdsl.cluster.load import load_cluster; print(load_cluster('l4x4').size)") == "4\n"


def test_a_statement(run: Run) -> None:
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/plan")
    said = run("-c", SAID)
    assert "did you mean `colocate`?" in said and "Put operators where others are." in said


SAID = """
from ssdsl.lang.parse import parse
from ssdsl.repl.help import TOPICS
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
try:
    parse(Source("plan.ssp", "colocte a with b"))
except PlanError as error:
    (found,) = error.diagnostics
    print(found.text(found.help))
print(TOPICS["colocate"])
"""


@pytest.mark.parametrize(
    ("name", "most"),
    [("operator", 1), ("collective", 7), ("statement", 5), ("pass", 2), ("view", 2), ("model", 3), ("cluster", 1)],
)
def test_files_that_a_commit_touches(name: str, most: int) -> None:
    """Without its tests."""
    touched = re.findall(r"^diff --git a/(\S+)", COMMITS[name], re.MULTILINE)
    assert touched and len([path for path in touched if not path.startswith(("tests/", "docs/"))]) <= most


def _run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
