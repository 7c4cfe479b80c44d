"""docs/training.md: its scripts train, go on from each other, and say what stands there."""

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.cli.commands import call
from tests.preloaded import Preloaded

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(?:# (\w+\.py)\n)?(.*?)^```", PAGE, re.M | re.S)
FILES = {name: text for name, text in BLOCKS if name}
GOING_ON = [text for name, text in BLOCKS if not name]
COMMANDS = re.findall(r"^ssdsl (.*)$", PAGE, re.M)
OF_TRANSFORMERS = FILES["hf.py"].replace("loss {", "llama {")  # what it prints is told apart
(MISTAKE,) = re.findall(r"^rank 0: error: (.*?)^```", PAGE, re.M | re.S)
(NOT_FINITE,) = re.findall(r"^```\n(the loss of step .*?)\n```", PAGE, re.M | re.S)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and one that is all that trains together."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    first = [OF_TRANSFORMERS] if find_spec("transformers") else []
    (folder / "all.py").write_text("\n".join([*first, FILES["train.py"], *GOING_ON]))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, preloaded: Preloaded) -> Run:
    """Runs Python in the folder of the page's files."""
    own = {"PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1", "PYTHON_EXEC": preloaded.executable}
    environment = {**os.environ, **own}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        command = [preloaded.executable, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)

    return python


@pytest.fixture(scope="module")
def trained(run: Run) -> subprocess.CompletedProcess[str]:
    """train.py, with all that goes on with it, behind hf.py."""
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "all.py")


def numbers(said: str, word: str) -> list[float]:
    """What ranks printed behind a word; one's line may end behind another's."""
    return [float(number) for number in re.findall(rf"(?<![a-z]){word} (\d+\.\d+)", said)]


def here(script: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a script prints in this process, where torch is loaded already."""
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    out = io.StringIO()
    with chdir(script.parent), redirect_stdout(out), torch.random.fork_rng():
        runpy.run_path(str(script), run_name="__main__")
    sys.modules.pop("net", None)
    return out.getvalue()


def test_a_plan_trains_as_one_device(
    folder: Path, trained: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = numbers(here(folder / "alone.py", monkeypatch), "loss")
    plan = numbers(trained.stdout, "loss")
    assert len(plan) == len(losses) == 24, trained.stderr
    assert plan[-1] < plan[0] / 2  # dropout draws other numbers on one device


def test_all_sections_go_on_with_it(trained: subprocess.CompletedProcess[str]) -> None:
    assert len(numbers(trained.stdout, "odd")) == 4, f"{trained.stdout}{trained.stderr}"
    for word in ("valid", "right", "single", "shorter", "buckets", "best", "average", "half", "large"):
        assert len(numbers(trained.stdout, word)) == 2, f"{word}: {trained.stdout}{trained.stderr}"


def test_the_mistake_is_the_one_that_stands_there(trained: subprocess.CompletedProcess[str]) -> None:
    assert trained.returncode != 0
    assert MISTAKE in trained.stderr
    assert 'all.py", line' not in trained.stderr


def test_the_first_nan_is_told_as_it_stands_there(trained: subprocess.CompletedProcess[str]) -> None:
    """`print` writes the end of the last line by itself, and another rank's text may stand before it."""
    assert trained.stdout.count(NOT_FINITE) == 2, trained.stdout


def test_its_checkpoint_is_a_file_for_torch(
    folder: Path, trained: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = (words for words in COMMANDS if words.startswith("checkpoint to-torch"))
    done = call(*shlex.split(command), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    here(folder / "use.py", monkeypatch)


@pytest.mark.slow
def test_a_compiled_folder_trains(run: Run) -> None:
    (command,) = (words for words in COMMANDS if words.startswith("compile"))
    done = run("-m", "ssdsl", *shlex.split(command))
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "folder.py")
    assert len(numbers(done.stdout, "loss")) == 2, done.stdout + done.stderr


def test_a_model_of_transformers(trained: subprocess.CompletedProcess[str]) -> None:
    pytest.importorskip("transformers")
    assert len(numbers(trained.stdout, "llama")) == 2, trained.stdout + trained.stderr


@pytest.mark.slow
def test_a_pretrained_model_that_no_process_makes(run: Run) -> None:
    pytest.importorskip("transformers")
    (command,) = (words for words in COMMANDS if words.startswith("checkpoint from-safetensors"))
    sizes = FILES["hf.py"].partition("model = ")[0] + "LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))"
    for words in (["-c", f"{sizes}.save_pretrained('pretrained')"], ["-m", "ssdsl", *shlex.split(command)]):
        done = run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "pretrained.py")
    assert len(numbers(done.stdout, "loss")) == 2, done.stdout + done.stderr


def test_every_file_is_run() -> None:
    own = {"net.py", "alone.py", "train.py", "use.py", "hf.py", "folder.py", "model.py", "pretrained.py"}
    assert FILES.keys() == own and len(GOING_ON) == 12 and len(COMMANDS) == 3
