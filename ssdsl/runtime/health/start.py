"""Starts a rank: finds its number among all ranks, and joins their process group."""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..ranks.gloo_staging import Staged
from ..ranks.transport import Transport
from .torchrun_store import has_store, rendezvous

PER_NODE = 8
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def command(devices: int, main: str) -> str:
    """The command that starts a program: a line for a single node, and with many devices a second one for several
    nodes."""
    one = f"torchrun --nproc-per-node={devices} {main}"
    if devices <= PER_NODE:
        return one
    per_node = next(n for n in range(PER_NODE, 0, -1) if devices % n == 0)
    several = f"torchrun --nnodes={devices // per_node} --nproc-per-node={per_node}"
    rendezvous = "--rdzv-backend=c10d --rdzv-endpoint=HOST:29500"
    return f"{one}\n{several} {rendezvous} {main}  # on each node; HOST is one of them"


def find_place(needed: int, main: str) -> int:
    """This process's rank. Sets the environment that torch.distributed reads; under Slurm it is derived from `srun`'s.

    Raises SystemExit, with the command to use, if the environment does not give the rank.
    """
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
    """Sets torchrun's variables from those of a Slurm job step, if there is one and they are not set. The store runs on
    the step's first host."""
    if "RANK" in os.environ or "SLURM_STEP_NUM_TASKS" not in os.environ:
        return
    for name, slurm in SLURM.items():
        if slurm in os.environ:
            os.environ.setdefault(name, os.environ[slurm])
    if hosts := os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST"):
        os.environ.setdefault("MASTER_ADDR", first_host(hosts))
    job = int(os.environ.get("SLURM_JOB_ID", "0")) + int(os.environ.get("SLURM_STEP_ID", "0"))
    os.environ.setdefault("MASTER_PORT", str(20000 + job % 20000))


def first_host(hosts: str) -> str:
    """The first host of a Slurm host list.

    >>> first_host("gpu[07-12,20],login1")
    'gpu07'
    """
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", hosts)
    return "".join(part or "" for part in found.groups()) if found else hosts


def join_group(
    folder: Path, device: str, backend: str | None, seed: int, timeout_s: float, link: str | None
) -> tuple[torch.device, str]:
    """Joins the process group of a program's ranks. Returns this rank's device, and the name of this attempt of the
    run.

    A rank that waits longer than the timeout fails.
    """
    if not (folder / "weights.pt").exists():
        raise SystemExit("this program was compiled from a model on the meta device: it has no weights and cannot run")
    torch.manual_seed(seed)
    return join_ranks(device, backend, timeout_s, link)


def join_ranks(
    device: str | None, backend: str | None, timeout_s: float, link: str | None = None
) -> tuple[torch.device, str]:
    """Joins the process group of all ranks, if the script has not. Returns this rank's device, and the name of this
    attempt.

    By default `device` is cuda where there is a GPU, and `backend` is NCCL for GPUs and gloo for the CPU. gloo also
    works on GPUs. Several ranks may share a GPU, slowly. Without RANK in the environment, this process is the only
    rank. Ranks on the CPU may be joined by an emulated network, whose speed `link` says.
    """
    _from_slurm()
    are_shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()  # GPUs, by several ranks
    if not are_shared:  # a GPU has too few queues for so many in each process
        # with CUDA's 8, computation would wait for messages in the same queue; CUDA reads this when it starts
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    chosen = _device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if dist.is_initialized():
        return chosen, "first"
    backend = backend or ("nccl" if chosen.type == "cuda" else "gloo")
    if backend not in ("gloo", "nccl") or (backend == "nccl" and chosen.type == "cpu"):
        raise SystemExit(f"ranks on a {chosen.type} device cannot use the backend `{backend}`: take gloo")
    if link is not None:
        backend = _emulated(chosen, link)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if backend == "nccl" and are_shared:
        for name, value in (("NCCL_HOSTID", f"rank {rank}"), ("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")):
            os.environ.setdefault(name, value)  # NCCL refuses two ranks of one host on a GPU
    timeout = timedelta(seconds=timeout_s)
    bound = chosen if backend == "nccl" else None  # NCCL then makes communicators at once, and barriers use that GPU
    name, where = "first", dict[str, Any]()
    if "RANK" not in os.environ:
        where = {"store": torch._C._distributed_c10d.HashStore(), "rank": 0, "world_size": 1}
    elif has_store():
        name, store = rendezvous(rank, ranks, timeout)
        where = {"store": store, "rank": rank, "world_size": ranks}
    dist.init_process_group(backend, timeout=timeout, device_id=bound, **where)
    return chosen, name


def _emulated(device: torch.device, link: str) -> str:
    """The backend whose links have a speed."""
    if device.type != "cpu":
        raise SystemExit("--link is for ranks on the CPU: start the program with --device cpu")
    from ..link.backend import BACKEND
    from ..link.host import VARIABLE

    os.environ[VARIABLE] = link
    return BACKEND


def transport(device: torch.device, timeout_s: float) -> Transport:
    """The transport for tensors of the device over torch.distributed.

    A script may have made the process group with a backend for each kind of device.
    """
    timeout = timedelta(seconds=timeout_s)
    if device.type == "cuda" and "cuda:nccl" in dist.get_backend_config():
        return Transport(timeout, device)
    return (Staged if device.type == "cuda" else Transport)(timeout)


def _device(kind: str) -> torch.device:
    """This rank's device. If the node has fewer GPUs than ranks, they are shared round robin."""
    if kind not in ("cpu", "cuda"):
        raise SystemExit(f"there is no device `{kind}`: it is cpu or cuda")
    if kind == "cpu":
        return torch.device("cpu")
    if torch.cuda.device_count() == 0:
        raise SystemExit("this machine has no GPU that torch can use: start the program with --device cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
