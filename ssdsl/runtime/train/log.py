"""The log of a training run: a line of JSON for each step, and TensorBoard events if TensorBoard is installed.

All numbers are on the host when a step ends, so logging does not wait for the device.
"""

import json
import resource
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..program.table import Table

FILE = "metrics.jsonl"
# Dense peaks in flop/s of 16-bit matrix products, by a word of the device's name, as published by the makers.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "V100": 125e12,
}


@dataclass(frozen=True)
class Work:
    """The work of a step of all devices together: samples, tokens (None if the model has none) and floating-point
    operations, `flops` (None if unknown)."""

    samples: int
    tokens: int | None = None
    flops: int | None = None

    @classmethod
    def of(cls, table: Table) -> "Work":
        """The work of a program's step. Tokens are the elements of the first integer input with several axes.

        >>> from types import SimpleNamespace
        >>> from ssdsl.runtime.program.table import BatchInput
        >>> Work.of(SimpleNamespace(inputs={"ids": BatchInput((4, 64), "int64", ())}, flops=10))
        Work(samples=4, tokens=256, flops=10)
        """
        shapes = [(entry.shape, entry.dtype) for entry in table.inputs.values()]
        samples = next((shape[0] for shape, _ in shapes if shape), 1)
        ids = next((shape for shape, dtype in shapes if "int" in dtype and len(shape) > 1), None)
        return cls(samples, torch.Size(ids).numel() if ids is not None else None, table.flops or None)


class Log:
    """The log of a run in a folder, written by one rank; other ranks, and runs without a folder, write nothing.

    `work` is that of each step; a loop may set it before a step of another size. `peak_flops` is the peak of all
    devices together, in flop/s; MFU is logged only with it. `first` is the next step: lines of later steps, from before
    a resume, are dropped.
    """

    def __init__(
        self, folder: Path | None, work: Work, *, peak_flops: float | None = None, first: int = 0, writes: bool = True
    ) -> None:
        self.work, self.peak_flops = work, peak_flops
        self.path = folder / FILE if folder is not None and writes else None
        self.board = _tensorboard(folder, first) if folder is not None and writes else None
        self.last = time.perf_counter()
        if self.path is not None:
            _keep_before(self.path, first)

    def step(
        self, step: int, loss: float, *, lr: float | None = None, time_s: float | None = None, **more: float | None
    ) -> dict[str, Any]:
        """Writes and returns the numbers of a step. `time_s` is by default the time since the last call.

        `more` are numbers of the user, such as the norm of the gradients; None is left out.
        """
        now = time.perf_counter()
        taken = time_s if time_s is not None else now - self.last
        self.last = now
        said = {"step": step, "loss": loss, "time_s": taken, "lr": lr, **self._rates(taken)}
        return self.write(said | {"memory_bytes": peak_memory_bytes()} | more)

    def write(self, values: dict[str, Any]) -> dict[str, Any]:
        """Writes a line of numbers by name, `step` among them; returns it without values that are None."""
        said = {name: value for name, value in values.items() if value is not None}
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(said) + "\n")
        if self.board is not None:
            for name, value in said.items():
                if name != "step":
                    self.board.add_scalar(name, value, said["step"])
        return said

    def close(self) -> None:
        """Closes TensorBoard's file."""
        if self.board is not None:
            self.board.close()

    def _rates(self, time_s: float) -> dict[str, float | None]:
        """Throughput per second, and the share of the devices' peak."""
        each = 1 / time_s if time_s > 0 else 0.0
        work, peak = self.work, self.peak_flops
        tokens = work.tokens * each if work.tokens is not None else None
        mfu = work.flops * each / peak if work.flops is not None and peak else None
        return {"samples_per_s": work.samples * each, "tokens_per_s": tokens, "mfu": mfu}


def known_peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """A device's peak in flop/s for 16-bit matrix products; None if the device is not known.

    Also None for float32, whose peak depends on TF32 and on regions under autocast.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for words, peak in PEAKS.items() if all(word in name for word in words.split())), None)


def peak_memory_bytes(device: torch.device | None = None) -> int:
    """The most memory this process has used: of its GPU if it runs on one (by default, if there is one), else of the
    machine."""
    if device.type == "cuda" if device is not None else torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _keep_before(path: Path, first: int) -> None:
    """Drops the lines of steps that run again, and an incomplete last line."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(line for line in lines if json.loads(line)["step"] < first))


def _tensorboard(folder: Path, first: int) -> Any:
    """TensorBoard's writer, or None if it is not installed."""
    try:
        board = import_module("torch.utils.tensorboard")
    except ImportError:
        return None
    return board.SummaryWriter(str(folder / "tensorboard"), purge_step=first)
