"""`ssdsl.engine`: a plan and a model in the user's own training script, which torchrun starts on every rank."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ssdsl.ir.program import Kernels
from ssdsl.kernel_choice import DEFAULT, KernelChoice, WrongKernels, kernel_choice, runnable
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.errors import NotCompiled
from ssdsl.model.load.from_module import Inputs, model_of
from ssdsl.model.load.model import Model
from ssdsl.model.load.outputs import Where
from ssdsl.record import replace
from ssdsl.run.rank0_compiler import Live, rendered
from ssdsl.runtime.data.batch import text
from ssdsl.runtime.data.rank_dataset import blamed
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.random.counter_rng import GENERATORS, Generator
from ssdsl.runtime.ranks.control import Control
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.precision import HALF
from ssdsl.runtime.train.session import begin


def engine(
    plan: str | os.PathLike[str],
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    example: Inputs,
    *,
    axes: Mapping[str, Sequence[str]] | None = None,
    params: Mapping[str, int] | None = None,
    loss: Where | Sequence[str] = None,
    autocast: torch.dtype | None = None,
    precision: str | None = None,
    kernels: str | None = None,
    load_later: bool = False,
    seed: int = 0,
    generator: Generator = "hash",
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 600.0,
    blocking: bool = False,
) -> Engine:
    """The engine that trains `model` as `plan` says; called alike on every rank that torchrun started.

    - `plan`: a file, or the name of a plan that comes with ssdsl; `params` sets its parameters.
    - `model`: a module, which is not trained: it keeps its weights, on all ranks those of rank 0. For a module on the
      meta device, or a function (or class) that makes the module, each rank makes only its part; with `load_later`
      weights on meta are NaN until `Engine.load`.
    - `example`: a global batch, whose shapes are those of the program: tensors by the names of forward's arguments, in
      their order, or a single one. `axes` names the axes of each: `{"x": ("batch", "seq")}`.
    - `loss`: where the loss is in forward's result: a key, a position, or a function of result and batch; by default
      the result itself, its `loss`, or its only element that is one number. Of several losses: a dictionary of such by
      name, or the names of keys, of which `engine.step(batch, loss=...)` trains one.
    - `autocast`: forward and loss run under `torch.autocast` to this type, `torch.bfloat16`.
    - `precision`: "bf16" or "fp16" converts the whole model to that type, with master weights in float32.
    - `kernels`: "eager", each operator as a kernel of its own, or "compiled": kernels that torch.compile makes of the
      operators between communication, as "compiled:max-autotune" in one of torch's modes. None is "compiled" for a
      module on which `torch.compile` was called, in its mode, else "eager".
    - `seed`: of the random numbers of training; `generator` is how they follow from it.
    - `device`, `backend`: "cpu" or "cuda", and torch.distributed's backend; by default GPUs where there are any.
    - `timeout`: the seconds for which a rank waits for others.
    - `blocking`: wait for each collective where it starts, so that nothing computes beside it. Numbers stay the same,
      to the last bit.

    Raises EngineError on all ranks, with the diagnostics.
    """

    def programs(world: World) -> Live:
        with world.control.together(), blamed("the function that makes the model", "correct it"), rendered():
            _check_arguments(plan, params, autocast, precision, seed, generator)
            module, compiles = _uncompiled(model)
            how = _chosen(kernels, compiles)
            world.mode = how.mode
            _tell_mode(how, device, world.rank)
            path = plan_path(os.fspath(plan))
            named = {n: n for n in loss} if isinstance(loss, list | tuple) else loss
            options: dict[str, Any] = {"loss": named, "autocast": autocast, "load_later": load_later}
            made = model_of(module, example, axes, seed=seed, generator=generator, **options)
        facts = {"plan": path.name, "params": dict(params or {}), "autocast": autocast, "precision": precision}
        facts |= {"kernels": str(how)}
        _compare(facts | {"seed": seed, "generator": generator} | _sizes(made), world.control)
        if how.kernels is Kernels.COMPILED:  # as the module would be
            made = replace(made, remarks=tuple(r for r in made.remarks if not isinstance(r, NotCompiled)))
        return Live(path, replace(made, precision=precision), params or {}, world.control, how.kernels)

    return begin(programs, device=device, backend=backend, seed=seed, timeout=timeout, blocking=blocking)


def _uncompiled(model: Any) -> tuple[Any, Callable[[], Any] | None]:
    """The module behind `torch.compile(module)`, or the one that it was given; and, if torch was to compile it, a
    function that says how."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # takes seconds to load; such a module has loaded it
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        return model._orig_mod, model.get_compiler_config
    call = getattr(model, "_compiled_call_impl", None)
    return model, None if call is None else call.get_compiler_config


def _chosen(kernels: str | None, compiles: Callable[[], Any] | None) -> KernelChoice:
    """The kernels that are asked for, or those of the module. Raises EngineError for a word that names none, and where
    torch cannot compile."""
    try:
        chosen = runnable(
            kernel_choice(kernels if kernels is not None else "compiled" if compiles is not None else "eager")
        )
    except WrongKernels as error:
        raise EngineError(error.reason, error.change) from None
    if chosen.kernels is Kernels.COMPILED:
        from ssdsl.runtime.kernels.compiled import check_compiler, mode_of  # which loads torch's compiler

        check_compiler()
        if kernels is None and compiles is not None:
            chosen = replace(chosen, mode=mode_of(compiles()))
    return chosen


def _tell_mode(chosen: KernelChoice, device: str | None, rank: int) -> None:
    """Prints on rank 0 what a mode does not do on a CPU."""
    if rank == 0 and chosen.mode != DEFAULT and (device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cpu":
        from ssdsl.runtime.kernels.compiled import without_graphs

        if said := without_graphs(chosen.mode):
            print(said, file=sys.stderr, flush=True)


def _check_arguments(plan: Any, params: Any, autocast: Any, precision: Any, seed: Any, generator: Any) -> None:
    """Raises EngineError for arguments that would fail, or be misread, later on."""
    if not isinstance(plan, str | os.PathLike):
        raise EngineError(f"the plan is {plan!r}", "give the name of a file, or of a plan that comes with ssdsl")
    if not isinstance(params or {}, Mapping):
        raise EngineError(f"`params` is {params!r}", 'give a dictionary, such as params={"T": 2}')
    if autocast not in (None, torch.bfloat16):
        change = "give torch.bfloat16; in float16 gradients vanish unless the loss is scaled, as precision='fp16' does"
        raise EngineError(f"autocast={autocast!r} is no type to cast to", change)
    if autocast is not None and precision is not None:
        reason = f"autocast={autocast} and precision={precision!r} are two ways to compute in half precision"
        raise EngineError(reason, "give one: `autocast` keeps the weights in float32 and casts where it is safe")
    if precision is not None and precision not in HALF:
        raise EngineError(f"there is no precision `{precision}`", "it is None (as the model is), 'bf16' or 'fp16'")
    if not isinstance(seed, int):
        raise EngineError(f"the seed is {seed!r}", "give a whole number")
    if generator not in GENERATORS:
        raise EngineError(f"there is no generator `{generator}`", f"it is one of {', '.join(GENERATORS)}")


def _sizes(model: Model) -> dict[str, str]:
    """The type and shape of each weight, buffer and input."""
    tensors = {f"model's `{name}`": t for name, t in model.module.state_dict().items()}
    tensors |= {f"example's `{name}`": t for name, t in model.batches[0].items()}
    return {name: text(t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def _compare(facts: Mapping[str, Any], control: Control) -> None:
    """Raises EngineError, on all ranks, if one was given other arguments than rank 0, which compiles for all."""
    if (found := control.difference(facts)) is not None:
        name, values = found
        raise EngineError(f"the ranks differ in the {name}: {values}", "call `ssdsl.engine` alike on all ranks")
