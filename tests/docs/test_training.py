"""docs/training.md: its scripts train, go on from each other, and say what stands there."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(?:# (\w+\.py)\n)?(.*?)^```", PAGE, re.M | re.S)
FILES = {name: text for name, text in BLOCKS if name}
GOING_ON = [text for name, text in BLOCKS if not name]
COMMANDS = re.findall(r"^ssdsl (.*)$", PAGE, re.M)
(MISTAKE,) = re.findall(r"^rank 0: error: (.*?)^```", PAGE, re.M | re.S)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python in the folder of the page's files."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "all.py").write_text("\n".join([FILES["train.py"], *GOING_ON]))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)

    return python


@pytest.fixture(scope="module")
def trained(run: Run) -> subprocess.CompletedProcess[str]:
    """train.py, with all that goes on with it."""
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "all.py")


def numbers(said: str, word: str) -> list[float]:
    """What ranks printed behind a word; one's line may end behind another's."""
    return [float(number) for number in re.findall(rf"(?<![a-z]){word} (\d+\.\d+)", said)]


def test_a_plan_trains_as_one_device(run: Run, trained: subprocess.CompletedProcess[str]) -> None:
    alone = run("alone.py")
    assert alone.returncode == 0, alone.stderr
    losses, plan = numbers(alone.stdout, "loss"), numbers(trained.stdout, "loss")
    assert len(plan) == len(losses) == 24, trained.stderr
    assert plan[-1] < plan[0] / 2  # dropout draws other numbers on one device


def test_all_sections_go_on_with_it(trained: subprocess.CompletedProcess[str]) -> None:
    assert len(numbers(trained.stdout, "odd")) == 4, f"{trained.stdout}{trained.stderr}"
    for word in ("valid", "right", "single", "best", "average", "half", "large"):
        assert len(numbers(trained.stdout, word)) == 2, f"{word}: {trained.stdout}{trained.stderr}"


def test_the_mistake_is_the_one_that_stands_there(trained: subprocess.CompletedProcess[str]) -> None:
    assert trained.returncode != 0
    assert MISTAKE in trained.stderr
    assert 'all.py", line' not in trained.stderr


def test_its_checkpoint_is_a_file_for_torch(run: Run, trained: subprocess.CompletedProcess[str]) -> None:
    (command,) = (words for words in COMMANDS if words.startswith("checkpoint to-torch"))
    for words in (["-m", "ssdsl", *shlex.split(command)], ["use.py"]):
        done = run(*words)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_compiled_folder_trains(run: Run) -> None:
    (command,) = (words for words in COMMANDS if words.startswith("compile"))
    done = run("-m", "ssdsl", *shlex.split(command))
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "folder.py")
    assert len(numbers(done.stdout, "loss")) == 2, done.stdout + done.stderr


def test_a_model_of_transformers(run: Run) -> None:
    pytest.importorskip("transformers")
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "hf.py")
    assert len(numbers(done.stdout, "loss")) == 2, done.stdout + done.stderr


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
    assert FILES.keys() == own and len(GOING_ON) == 9 and len(COMMANDS) == 3
