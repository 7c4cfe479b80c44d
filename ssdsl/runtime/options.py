"""Options of training: the command-line arguments of every program, which a launcher gives and `main.py` reads.

This module does not import torch.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

BASIC = ("steps", "seed", "device", "optimizer", "lr", "timeout_s")  # given to a program even at their defaults


def _option(default: Any, help: str | None = None, **more: Any) -> Any:
    """A field with what argparse is told of its option."""
    return field(default=default, metadata={"default": default, "help": help, **more})


@dataclass(frozen=True, slots=True)
class Training:
    """The options. Paths are absolute if processes may start in another folder. The texts are those of `--help`."""

    steps: int = _option(10, "training steps, with those before a resumed run")
    seed: int = _option(0, "seed of random numbers, such as dropout's")
    device: str = _option("cpu", choices=("cpu", "cuda"))
    optimizer: str = _option("adamw", "one of torch.optim, as adamw,weight_decay=0.1", metavar="NAME[,OPTION=VALUE]...")
    lr: float = _option(1e-3, "learning rate")
    record: bool = _option(False, "report when each task of each step starts and ends")
    timeout_s: float = _option(600, "seconds to wait for a rank that does not move")
    data: str | None = _option(None, "FILE:FUNCTION that returns the data; else the batches beside it")
    backend: str | None = _option(None, "nccl with cuda, else gloo, if not given", choices=("gloo", "nccl"))
    clip: float | None = _option(None, "largest norm of all gradients together")
    accumulate: int = _option(1, "batches whose gradients are added up for a step")
    eval_data: str | None = _option(None, "FILE:FUNCTION that returns what to evaluate on")
    eval_every: int | None = _option(None, "evaluate every so many steps; else at the end")
    save: Path | None = _option(None, "folder for checkpoints")  # noqa: RUF009  # a field
    save_every: int | None = _option(None, "save every so many steps; else at the end")
    keep: int = _option(3, "how many checkpoints to keep")
    resume: Path | None = _option(None, "folder of checkpoints; the run goes on from the newest")  # noqa: RUF009
    allow_nan: bool = _option(False, "go on where the loss is not finite")
    find_nan: bool = _option(False, "name what made the first NaN; check gradients and updates too")
    blocking: bool = _option(False, "wait for each collective where it starts: nothing computes beside it")
    link: str | None = _option(None, "emulated network between ranks, as bandwidth=1Gb/s,latency=2ms", metavar="SPEED")
    kernel_mode: str = _option("default", "torch.compile's mode, if kernels are compiled", metavar="MODE")

    def arguments(self) -> list[str]:
        """The program's command-line arguments; options with the program's own defaults may be left out."""
        found = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value is True:
                found.append(flag_of(option.name))
            elif value != option.default or option.name in BASIC:
                found += [flag_of(option.name), str(value)]
        return found


def flag_of(name: str) -> str:
    """The flag of an option: `--eval-every`, `--timeout`."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"
