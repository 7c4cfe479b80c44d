"""Runs of operators that torch.compile makes kernels of.

A role's file marks them with `@compiled`: functions of tensors alone, without communication. Each is compiled for the
arguments that it is called with, forward and backward together. It runs operator by operator, as it is written, where
torch cannot compile it; for more than `MANY` kinds of arguments; and in a step that is followed operator by operator (a
clock, a search for NaN).
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.runtime.cache_dir_utils import cache_dir

from ..errors import EngineError
from ..ranks.world import here

MANY = 3  # graphs of a run: for instance for training, for a smaller last batch, and without gradients
BACKEND = os.environ.get("SSDSL_COMPILER", "inductor")  # `aot_eager_decomp_partition` needs no C++ compiler
LIMIT = 64  # of torch's own graphs of a run, which all ranks of a process share
LIMITED: dict[str, Any] = (
    {"recompile_limit": LIMIT} if "recompile_limit" in signature(torch.compile).parameters else {}
)  # torch 2.13


class CompiledRun:
    """A function of tensors and sizes. `is_compiled` says, by kind of arguments, whether they run compiled: a forward
    that is recomputed must run as it ran before. `refused` says why some do not."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.refused = run, ""
        self.kernel = _kernel(_Code(run))
        self.is_compiled: dict[Hashable, bool] = {}
        here().runs.append(self)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__

    def __call__(self, *args: Any) -> Any:
        if here().tracer is not None:
            return self.run(*args)
        kind = _kind(args)
        if kind not in self.is_compiled:
            return self._first(kind, args)
        return self.run(*args) if not self.is_compiled[kind] else self._compiled(args)

    def _first(self, kind: Hashable, args: tuple[Any, ...]) -> Any:
        """The first call with arguments of a kind."""
        world = here()
        begun = sum(bool(run.is_compiled) for run in world.runs)
        world.compiling = f"compiling `{self.name}`, {begun + 1} of {len(world.runs)}"
        try:
            with _turn(self.run, kind):
                return self._tried(kind, args)
        finally:
            world.compiling = ""

    def _tried(self, kind: Hashable, args: tuple[Any, ...]) -> Any:
        if sum(self.is_compiled.values()) == MANY:
            self.refused = f"it is called with more than {MANY} kinds of arguments"
        else:
            try:
                result = self._compiled(args)
            except FailOnRecompileLimitHit:
                self.refused = "torch has too many graphs of it"
            except TorchDynamoException as error:
                self.refused = str(error).strip().partition("\n")[0]
            else:
                self.is_compiled[kind] = True
                return result
        self.is_compiled[kind] = False
        return self.run(*args)

    def _compiled(self, args: tuple[Any, ...]) -> Any:
        try:
            return self.kernel(*args)
        except TorchDynamoException:
            raise
        except (IndexError, RuntimeError):
            with torch.no_grad():
                self.run(*args)  # raises the same, where a line of the role's file says which operator it is
            raise


def _kind(args: tuple[Any, ...]) -> Hashable:
    """What decides which graph a call needs: sizes, and which gradients."""
    given = (((*a.shape,), a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args)
    return torch.is_grad_enabled(), *given


@contextmanager
def _turn(run: Callable[..., Any], kind: Hashable) -> Iterator[None]:
    """A context in which no other process of this machine compiles the same: it finds the kernels in torch's cache
    afterwards. Forward and backward are compiled together."""
    if BACKEND != "inductor":
        yield
        return
    code = run.__code__
    key = repr((code.co_code, code.co_consts, code.co_names, kind))
    folder = Path(cache_dir(), "ssdsl")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / hashlib.sha256(key.encode()).hexdigest()).open("w") as file,
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
    ):
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


class _Code:
    """A function, equal to others with the same code: they read nothing else that differs."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Code) and other.run.__code__ == self.run.__code__

    def __hash__(self) -> int:
        return hash(self.run.__code__)


@lru_cache(maxsize=512)
def _kernel(code: _Code) -> Callable[..., Any]:
    """The compiled function, one for all ranks of a process: torch keeps kernels by code, and names them in the module
    that it first compiled them for. Raises EngineError where it cannot compile."""
    check_compiler()
    return torch.compile(code.run, fullgraph=True, dynamic=False, backend=BACKEND, **LIMITED)


def check_compiler() -> None:
    """Raises EngineError if torch cannot compile on this machine: kernels of CPUs need a C++ compiler."""
    if BACKEND != "inductor" or torch.cuda.is_available():
        return
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise EngineError(
            "compiled kernels of a CPU need a C++ compiler, and there is none: neither `g++` nor `clang++` is in PATH",
            "install one, or name it in the environment variable CXX; or give kernels 'eager'",
        ) from error


def compiled(run: Callable[..., Any]) -> CompiledRun:
    """A decorator for a run of operators that torch.compile makes kernels of."""
    return CompiledRun(run)
