"""Runs of operators that torch.compile makes kernels of.

A role's file marks them with `@compiled`: functions of tensors alone, without communication. Each is compiled when it
first runs, for the sizes that it is given, forward and backward together. It runs operator by operator, as it is
written, where torch cannot compile it, in a step that is followed operator by operator (a clock, a search for NaN), and
for more than `MANY` kinds of arguments.
"""

import logging
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

from ..ranks.world import here

MANY = 3  # graphs of a run: for instance for training, for a smaller last batch, and without gradients
BACKEND = os.environ.get("SSDSL_COMPILER", "inductor")  # `aot_eager_decomp_partition` needs no C++ compiler


class CompiledRun:
    """A function of tensors; `refused` says why it is not compiled, "" if it is."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.refused = run, ""
        self.kernel = _compiling(_Run(run))
        here().runs.append(self)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__

    def __call__(self, *args: Any) -> Any:
        if self.refused or here().tracer is not None:
            return self.run(*args)
        try:
            with torch._dynamo.config.patch(recompile_limit=MANY):  # type: ignore[attr-defined, no-untyped-call]
                return self.kernel(*args)
        except FailOnRecompileLimitHit:
            self.refused = f"it was called for more than {MANY} kinds of arguments"
        except TorchDynamoException as error:
            self.refused = str(error).strip().partition("\n")[0]
        except (IndexError, RuntimeError):
            with torch.no_grad():
                self.run(*args)  # raises the same, where a line of the role's file says which operator it is
            raise
        return self.run(*args)


class _Run:
    """A function, equal to others with the same code: they read nothing else that differs."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Run) and other.run.__code__ == self.run.__code__

    def __hash__(self) -> int:
        return hash(self.run.__code__)


@lru_cache(maxsize=512)
def _compiling(run: _Run) -> Callable[..., Any]:
    """The compiled function, one for all ranks of a process: torch keeps kernels by code, and names them in the module
    that it compiled them for."""
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # which run has too many graphs is told once, by us
    return torch.compile(run.run, fullgraph=True, dynamic=False, backend=BACKEND)


def compiled(run: Callable[..., Any]) -> CompiledRun:
    """A decorator for a run of operators that torch.compile makes kernels of."""
    return CompiledRun(run)
