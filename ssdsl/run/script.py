"""`ssdsl.engine`: a plan and a model in the user's own training script, which torchrun starts on every rank."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ssdsl.lang.shipped import plan_path
from ssdsl.model.loss import Where
from ssdsl.model.model_of import Inputs, model_of
from ssdsl.run.live import Live, Request
from ssdsl.runtime.bits import Generator
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.precision import HALF
from ssdsl.runtime.train.session import begin
from ssdsl.runtime.world import World
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render


def engine(
    plan: str | os.PathLike[str],
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    example: Inputs,
    *,
    axes: Mapping[str, Sequence[str]] | None = None,
    params: Mapping[str, int] | None = None,
    loss: Where = None,
    precision: str | None = None,
    seed: int = 0,
    generator: Generator = "hash",
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 600.0,
) -> Engine:
    """The engine that trains `model` as `plan` says; called alike on every rank that torchrun started.

    `plan` is a file or the name of a plan that comes with ssdsl, `params` sets its parameters. `model` is untouched; of
    one on the meta device, or a function that makes the module, each rank makes only its part. `example` is a global
    batch; `axes` names axes of its tensors (`{"x": ("batch", "seq")}`), `loss` says where the loss is in what forward
    returns. `precision` "bf16" or "fp16" computes in that type, with master weights in float32. `seed` is of random
    numbers in training; all ranks start from rank 0's weights. A rank waits `timeout` seconds for others at most.

    Raises EngineError on all ranks, with the diagnostics of what is wrong.
    """
    if precision is not None and precision not in HALF:
        raise EngineError(f"there is no precision `{precision}`", "it is None (as the model is), 'bf16' or 'fp16'")

    def programs(world: World) -> Live:
        error = made = None
        try:
            path = plan_path(os.fspath(plan))
            made = model_of(model, example, axes, loss=loss, seed=seed, generator=generator)
        except PlanError as found:
            error = "\n".join(map(render, found.diagnostics))
        world.control.vote(error)
        assert made is not None
        return Live(Request(path, replace(made, precision=precision), params or {}), world.control)

    return begin(programs, device=device, backend=backend, seed=seed, timeout=timeout)
