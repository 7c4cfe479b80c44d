"""How a program's process learns which one it is, and what it says if it cannot."""

import pytest
import torch
import torch.distributed as dist

from ssdsl.runtime.health.start import NAMES, command, find_place, first_host, transport
from ssdsl.runtime.ranks.gloo_staging import Staged


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither torchrun nor Slurm has started this process."""
    for name in (*NAMES, "SLURM_STEP_NUM_TASKS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_without_torchrun() -> None:
    with pytest.raises(SystemExit, match="cannot tell which of them it is: RANK, WORLD_SIZE") as ended:
        find_place(4, "p/main.py")
    assert "torchrun --nproc-per-node=4 p/main.py" in str(ended.value)


def test_another_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "2")
    with pytest.raises(SystemExit, match="for 4 processes, not 2"):
        find_place(4, "p/main.py")


@pytest.mark.parametrize(
    ("backends", "is_staged"),
    [("cuda:nccl", False), ("cpu:gloo,cuda:nccl", False), ("cpu:gloo,cuda:gloo", True)],
)
def test_gpus_use_nccl_where_the_script_has_made_a_group_with_it(
    backends: str, is_staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside gloo, as accelerate and torchtitan make it: else tensors would go through the memory of the host."""
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    monkeypatch.setattr(dist, "new_group", lambda ranks, **options: options)
    made = transport(torch.device("cuda", 0), 60.0)
    assert isinstance(made, Staged) == is_staged
    of_group = made.new_group([0])
    expected = (None, None) if is_staged else ("nccl", torch.device("cuda", 0))
    assert (of_group["backend"], of_group["device_id"]) == expected


def test_under_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    step = {"PROCID": "11", "STEP_NUM_TASKS": "16", "LOCALID": "3", "STEP_NODELIST": "gpu[07-08]", "JOB_ID": "41234"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert find_place(16, "p/main.py") == 11
    assert (os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"]) == ("3", "gpu07")
    assert 20000 <= int(os.environ["MASTER_PORT"]) < 40000


@pytest.mark.parametrize(
    ("hosts", "first"), [("n1", "n1"), ("n1,n2", "n1"), ("n[01-04,9]", "n01"), ("a[3,5]-ib,b1", "a3-ib")]
)
def test_first_host(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_the_command() -> None:
    assert command(8, "main.py") == "torchrun --nproc-per-node=8 main.py"
    one, several = command(16, "main.py").splitlines()
    assert one == "torchrun --nproc-per-node=16 main.py"
    assert several.startswith("torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d")
    assert "--nnodes=2 --nproc-per-node=6" in command(12, "main.py")
