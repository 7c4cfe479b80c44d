"""How a rank starts: which of how many it is, and the process group of all."""

import os
import re
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

PER_NODE = 8
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def command(devices: int, main: str) -> str:
    """The command that starts a program; one line for a single node, and one for several if there are many devices."""
    one = f"torchrun --nproc-per-node={devices} {main}"
    if devices <= PER_NODE:
        return one
    per_node = next(n for n in range(PER_NODE, 0, -1) if devices % n == 0)
    several = f"torchrun --nnodes={devices // per_node} --nproc-per-node={per_node}"
    rendezvous = "--rdzv-backend=c10d --rdzv-endpoint=HOST:29500"
    return f"{one}\n{several} {rendezvous} {main}  # on each node; HOST is one of them"


def find_place(needed: int, main: str) -> int:
    """This process's rank. Sets what torch.distributed reads; under Slurm from what `srun` says.

    Raises SystemExit, with the command to use, for a process that nobody told which one it is.
    """
    if "RANK" not in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ:
        _from_slurm()
    missing = [name for name in NAMES if name not in os.environ]
    if missing:
        raise SystemExit(
            f"this program has {needed} processes, and this one cannot tell which of them it is: "
            f"{', '.join(missing)} not set. Start it with\n{command(needed, main)}\n"
            f"or under Slurm with one task per device\nsrun --ntasks={needed} python {main}"
        )
    world = int(os.environ["WORLD_SIZE"])
    if world != needed:
        raise SystemExit(f"this program is for {needed} processes, not {world}:\n{command(needed, main)}")
    return int(os.environ["RANK"])


def _from_slurm() -> None:
    """What torchrun would set, from the variables of a job's step. The first host of the step serves the others."""
    for name, slurm in SLURM.items():
        if slurm in os.environ:
            os.environ.setdefault(name, os.environ[slurm])
    if hosts := os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST"):
        os.environ.setdefault("MASTER_ADDR", first_host(hosts))
    job = int(os.environ.get("SLURM_JOB_ID", "0")) + int(os.environ.get("SLURM_STEP_ID", "0"))
    os.environ.setdefault("MASTER_PORT", str(20000 + job % 20000))


def first_host(hosts: str) -> str:
    """The first name of a list of Slurm's.

    >>> first_host("gpu[07-12,20],login1")
    'gpu07'
    """
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", hosts)
    return "".join(part or "" for part in found.groups()) if found else hosts


def join_group(folder: Path, device: str, seed: int, timeout_s: float) -> torch.device:
    """Join the process group of all ranks; the device of this one. A rank that waits longer than the timeout fails."""
    if not (folder / "weights.pt").exists():
        raise SystemExit("this program was compiled from a model on the meta device: it has no weights and cannot run")
    torch.manual_seed(seed)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s))
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")


def join_ranks(device: str | None, backend: str | None, timeout_s: float) -> torch.device:
    """Join the process group of a training script's ranks, if the script has not; the device of this one.

    A script that nobody told which rank it is, is the only one. `device` is cuda where there is a GPU, if not given;
    `backend` is NCCL for GPUs and gloo for the CPU.
    """
    if "RANK" not in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ:
        _from_slurm()
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        timeout, chosen = timedelta(seconds=timeout_s), backend or ("nccl" if kind == "cuda" else "gloo")
        if "RANK" in os.environ:
            dist.init_process_group(chosen, timeout=timeout)
        else:
            dist.init_process_group(
                chosen, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1, timeout=timeout
            )
    return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")
