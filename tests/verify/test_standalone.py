"""A compiled folder runs with torchrun where torch is and ssdsl is not; the command line does the whole way."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An interpreter that finds torch, with what it needs, and nothing of this project."""
    folder = tmp_path_factory.mktemp("bare")
    packages = Path(torch.__file__).parent.parent
    (folder / "site").mkdir()
    for entry in packages.iterdir():  # the folder itself would bring what .pth files add: an editable ssdsl
        if entry.suffix != ".pth" and not entry.name.startswith(("ssdsl", "_editable", "__editable__")):
            (folder / "site" / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return [str(folder / "venv" / "bin" / "python"), str(folder / "site")]


def start(python: list[str], *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"PYTHONPATH": python[1], "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command, pipe = [python[0], *arguments], subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(timeout=240)
            return subprocess.CompletedProcess(arguments, process.returncode, out, err)
        finally:
            process.terminate()  # torchrun ends its ranks, which a kill would leave behind


def test_ssdsl_is_not_there(python: list[str], tmp_path: Path) -> None:
    ended = start(python, "-c", "import torch, ssdsl", cwd=tmp_path)
    assert ended.returncode and "No module named 'ssdsl'" in ended.stderr


def test_the_folder_runs_with_torch_alone(python: list[str], tmp_path: Path) -> None:
    plan, program = ROOT / "examples" / "megatron.ssp", tmp_path / "program"
    command = [sys.executable, "-m", "ssdsl", "compile", str(plan), "--model", "gpt", "-o", str(program)]
    compiled = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stdout.strip() == f"torchrun --nproc-per-node=4 {program / 'main.py'}"
    agent = ["-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={free_port()}"]
    ended = start(python, *agent, str(program / "main.py"), "--steps", "3", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    losses = [float(line.split()[3]) for line in ended.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == 3 and all(5.5 < loss < 7.5 for loss in losses)  # log(512) = 6.2: it has learnt nothing yet


def free_port() -> int:
    """Not torchrun's own default, which two runs at a time would share."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
