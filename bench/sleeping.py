"""Runs a program whose matrix products sleep for as long as a device would need: `-m bench.sleeping 50 main.py ...`.

A second way to measure what an emulated network hides: two ranks that compute leave its threads no core. A product of n
floating-point operations sleeps for n / (50 GFLOP/s) and gives zeros, so losses mean nothing. All else is computed.
"""

import runpy
import sys
import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry


class Sleeping(TorchDispatchMode):
    """Products sleep; a device carries out so many floating-point operations a second."""

    def __init__(self, flops_per_s: float) -> None:
        super().__init__()
        self.flops_per_s = flops_per_s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = flop_registry.get(func.overloadpacket)
        if count is None:
            return func(*args, **(kwargs or {}))
        shapes = tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs or {}))
        result = func(*shapes[0], **shapes[1])
        time.sleep(count(*args, **(kwargs or {}), out_val=result) / self.flops_per_s)
        return tree_map_only(torch.Tensor, lambda x: torch.zeros_like(x, device="cpu"), result)


if __name__ == "__main__":
    rate, *sys.argv = sys.argv[1:]
    with Sleeping(float(rate) * 1e9):
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
