"""A compiled folder runs with torchrun where torch is and ssdsl is not; the command line does the whole way."""

import socket
from pathlib import Path

import pytest

from tests.bare import Bare, bare
from tests.cli.commands import call, write_readme


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    return bare(tmp_path_factory.mktemp("bare"), ["torch"])


@pytest.mark.parametrize("package", ["ssdsl", "numpy", "transformers", "rich"])
def test_it_is_not_there(torch_alone: Bare, tmp_path: Path, package: str) -> None:
    ended = torch_alone.run("-c", f"import {package}", cwd=tmp_path)
    assert ended.returncode and f"No module named '{package}'" in ended.stderr


def test_the_folder_runs_with_torch_alone(torch_alone: Bare, tmp_path: Path) -> None:
    losses = trained(torch_alone, tmp_path, 2, "megatron", "--model", "gpt", "--set", "T=1")
    assert len(losses) == 3 and all(5.5 < loss < 7.5 for loss in losses)  # log(512) = 6.2: it has learnt nothing yet


@pytest.mark.slow
def test_so_does_one_whose_ranks_make_the_weights(torch_alone: Bare, tmp_path: Path) -> None:
    write_readme(tmp_path)
    losses = trained(torch_alone, tmp_path, 2, "data_parallel", "--model", "mymodel.py:net", "--meta")
    assert len(losses) == 3 and losses[0] > losses[2] > 0


def trained(torch_alone: Bare, folder: Path, processes: int, *words: str) -> list[float]:
    """The losses of three steps of a program that is compiled here, and run there."""
    program = folder / "program"
    compiled = call("compile", *words, "--out", str(program), folder=folder)
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stdout.strip() == f"torchrun --nproc-per-node={processes} {program / 'main.py'}"
    agent = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={free_port()}"]
    ended = torch_alone.run(*agent, str(program / "main.py"), "--steps", "3", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return [float(line.split()[3]) for line in ended.stdout.splitlines() if line.startswith("step ")]


def free_port() -> int:
    """Not torchrun's own default, which two runs at a time would share."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
