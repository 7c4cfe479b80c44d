"""The engine of a compiled folder: `from build.megatron import engine`."""

from pathlib import Path
from typing import Any

from .engine import Engine
from .programs import InFolder
from .session import begin


def engine_in(
    folder: Path,
    *,
    device: str | None = None,
    backend: str | None = None,
    seed: int = 0,
    timeout: float = 600.0,
    kernel_mode: str = "default",
    blocking: bool = False,
) -> Engine:
    """The engine of the program in a folder, on this rank; called by every rank that torchrun started.

    `device` is by default "cuda" where there is a GPU, else "cpu"; `backend` is "nccl" or "gloo". `seed` seeds the
    random numbers of training. A rank waits at most `timeout` seconds for others. `kernel_mode` is torch.compile's, if
    kernels are compiled. With `blocking` a rank waits for each collective where it starts. Raises EngineError on all
    ranks.
    """
    how: dict[str, Any] = {"device": device, "backend": backend, "seed": seed, "timeout": timeout, "blocking": blocking}
    return begin(lambda world: InFolder(folder), mode=kernel_mode, **how)
