"""Runs of operators that torch.compile makes kernels of.

A role's file marks them with `@compiled`: functions of tensors alone, without communication. Each is compiled for the
arguments that it is called with, forward and backward together; where torch refuses one of its lines, what stands in
front of that and behind it is. It runs operator by operator, as it is written, for more than `MANY` kinds of arguments,
and in a step in which a search for NaN looks at each operator.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
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
from .run_pieces import RunLines, lines_of, refused_line

MANY = 3  # graphs of a run: for instance for training, for a smaller last batch, and without gradients
MOST = 16  # refused parts of a run, which is not cut any further then
BACKEND = os.environ.get("SSDSL_COMPILER", "inductor")  # `aot_eager_decomp_partition` needs no C++ compiler
GRAPHS = "triton.cudagraphs"  # torch's name of an option
LIMIT = 64  # of torch's own graphs of a run, which all ranks of a process share
LIMITED: dict[str, Any] = (
    {"recompile_limit": LIMIT} if "recompile_limit" in signature(torch.compile).parameters else {}
)  # torch 2.13


class CompiledRun:
    """A function of tensors and sizes. `ways` has, by kind of arguments, what is called for them: a forward that is
    recomputed must run as it ran before. `refused` says what runs as it is written, and why; `took_s` are the seconds
    until its kernels were there, and `loaded` says whether they were all in torch's cache."""

    def __init__(self, run: Callable[..., Any], lines: RunLines | None = None, of: "CompiledRun | None" = None) -> None:
        self.run, self.lines = run, lines
        self.refused: dict[str, str] = of.refused if of is not None else {}
        self.refusals: list[str] = of.refusals if of is not None else []  # the names of what torch has refused
        self.took_s, self.loaded = 0.0, True
        self.kernel = _kernel(_Code(self.run), here().mode)
        self.replays = uses_graphs(here().mode)
        self.ways: dict[Hashable, Callable[..., Any]] = {}

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__

    def __call__(self, *args: Any) -> Any:
        tracer = here().tracer
        followed = nullcontext() if tracer is None else tracer.compiled()
        kind = _kind(args)
        if followed is None:
            return self.run(*args)
        with followed:
            way = self.ways.get(kind)
            return self._first(kind, args) if way is None else way(*args)

    @property
    def is_compiled(self) -> bool:
        """Whether torch has compiled it, at least in pieces."""
        return any(way != self.run for way in self.ways.values())

    def _first(self, kind: Hashable, args: tuple[Any, ...]) -> Any:
        """The first call with arguments of a kind."""
        world = here()
        begun = sum(bool(run.ways) for run in world.runs)
        world.compiling = f"compiling `{self.name}`, {begun + 1} of {len(world.runs)}"
        start, known = time.perf_counter(), _lookups()
        try:
            with _turn(self.run, (kind, world.mode)):
                return self._tried(kind, args)
        finally:
            world.compiling = ""
            self.took_s += time.perf_counter() - start
            hits, misses = (now - before for now, before in zip(_lookups(), known, strict=True))
            self.loaded = self.loaded and hits > 0 and not misses

    def _tried(self, kind: Hashable, args: tuple[Any, ...]) -> Any:
        way: Callable[..., Any] = self.run
        if sum(way == self._compiled for way in self.ways.values()) == MANY:
            self.refused[self.name] = f"it is called with more than {MANY} kinds of arguments"
        else:
            try:
                result = self._compiled(*args)
            except FailOnRecompileLimitHit:
                self.refused[self.name] = "torch has too many graphs of it"
            except TorchDynamoException as error:
                way = self._around(error)
            else:
                self.ways[kind] = self._compiled
                return result
        self.ways[kind] = way
        return way(*args)

    def _around(self, error: TorchDynamoException) -> Callable[..., Any]:
        """The run in pieces that are compiled, around the line that torch refuses, or in halves if the error tells no
        line; as it is written if it is that line."""
        self.refusals.append(self.name)
        lines, number = self.lines or lines_of(self.run), refused_line(self.run, error)
        around = lines.cut(number, lambda p: CompiledRun(p.run, p, self)) if len(self.refusals) < MOST else None
        if around is None:
            self.refused[lines.told] = str(error).strip().partition("\n")[0]
        return around or self.run

    def _compiled(self, *args: Any) -> Any:
        try:
            return called_apart(self.kernel, args) if self.replays and _on_gpu(args) else self.kernel(*args)
        except TorchDynamoException:
            raise
        except (IndexError, RuntimeError):
            with torch.no_grad():
                self.run(*args)  # raises the same, where a line of the role's file says which operator it is
            raise


def _lookups() -> tuple[int, int]:
    """How often torch has looked for a graph's kernels in its cache, with success and in vain."""
    counts = torch._dynamo.utils.counters["inductor"]
    return counts["fxgraph_cache_hit"], counts["fxgraph_cache_miss"] + counts["fxgraph_cache_bypass"]


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
def _kernel(code: _Code, mode: str) -> Callable[..., Any]:
    """The compiled function, one for all ranks of a process: torch keeps kernels by code, and names them in the module
    that it first compiled them for. Raises EngineError where it cannot compile."""
    check_compiler()
    how = LIMITED | ({"mode": mode} if BACKEND == "inductor" else {})
    return torch.compile(code.run, fullgraph=True, dynamic=False, backend=BACKEND, **how)


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


# -- torch's modes -----------------------------------------------------------------------------------------------------


def modes() -> tuple[str, ...]:
    """The modes of torch.compile."""
    return tuple(torch._inductor.list_mode_options())


def uses_graphs(mode: str) -> bool:
    """Whether torch replays CUDA graphs in a mode, on GPUs."""
    return bool(torch._inductor.list_mode_options(mode).get(GRAPHS))


def without_graphs(mode: str) -> str:
    """What a CPU does not do of a mode, in a sentence; empty for a mode that has nothing of GPUs alone."""
    rest = [name for name in torch._inductor.list_mode_options(mode) if name != GRAPHS]
    return (
        f"torch's mode `{mode}` {'has no CUDA graphs' if rest else 'has no effect'} on a CPU"
        if uses_graphs(mode)
        else ""
    )


def mode_of(config: Any) -> str:
    """The mode in which torch was to compile a module, by what its compiler says of its options; `default` where these
    are no mode's."""
    known = torch._inductor.list_mode_options()
    names = {name for options in known.values() for name in options}
    usual = torch._inductor.config.get_config_copy()

    def has(options: dict[str, Any]) -> bool:
        return all(config.get(name) == options.get(name, usual.get(name)) for name in names)

    return next((mode for mode, options in known.items() if config and has(options)), "default")


def called_apart(kernel: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Calls a kernel that replays a CUDA graph, which writes its results, and in backward its gradients, to the same
    memory at each replay. Whoever reads them gets copies: a pipeline keeps those of several micro-batches, gradients of
    weights stay until the optimizer has stepped, and a transfer reads while the next kernel runs. What backward needs
    stays in the graphs' memory, where torch keeps it until then."""
    learning = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    given = iter(_CopiedGradients.apply(*learning) if learning else ())  # type: ignore[no-untyped-call]
    result = kernel(*(next(given) if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args))
    return tuple(x.clone() for x in result) if isinstance(result, tuple) else result.clone()


class _CopiedGradients(torch.autograd.Function):
    """The same tensors, whose gradients are copied."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if g is None else g.clone() for g in gradients)


def _on_gpu(args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, torch.Tensor) and a.is_cuda for a in args)


def compiled(run: Callable[..., Any]) -> CompiledRun:
    """A decorator for a run of operators that torch.compile makes kernels of."""
    made = CompiledRun(run)
    here().runs.append(made)
    return made
