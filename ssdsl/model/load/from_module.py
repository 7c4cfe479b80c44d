"""Makes a model of a module in Python, or of a function that makes one, and a batch as it comes from a loader."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ssdsl.model.load.batch import kind, named_axes, named_batch
from ssdsl.model.load.errors import BadModel, NumbersNeeded
from ssdsl.model.load.from_file import checked_loss
from ssdsl.model.load.initialisers import has_meta, initialised
from ssdsl.model.load.model import Model
from ssdsl.model.load.outputs import Where
from ssdsl.model.load.unmaterialised import Deferred, ReadsNumbers
from ssdsl.runtime.program.recipes import Recipes
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.diagnostic import PlanError

Inputs = Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor


def model_of(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    example: Inputs,
    axes: Mapping[str, Sequence[str]] | None = None,
    *,
    name: str | None = None,
    loss: Where = None,
    autocast: torch.dtype | None = None,
    seed: int = 0,
    generator: Generator = "hash",
    load_later: bool = False,
) -> Model:
    """The model of a module and an example batch.

    A batch has the forward's arguments by name, or in the order of its parameters. `axes` names axes of inputs; those
    that it leaves out are named by convention (`batch.py`). `loss` is the place of the loss in what the forward returns
    (`outputs.py`). With `autocast` forward and loss run under `torch.autocast` to this type.

    If the module is on the meta device, or a function makes it, each process makes only the weights that it holds: by
    the modules' own initialisers, or as the function would. With `load_later` the weights of a module on meta are NaN
    until a checkpoint is loaded. Raises PlanError, and what the function raises.
    """
    checked_loss(None, loss)
    made, recipes = _made(module, seed, generator, load_later)
    batch = named_batch(None, made, example, callable(loss))
    found = named_axes(None, made, batch, axes)
    return Model(name or type(made).__name__, made, (batch,), found, generator, recipes, loss, autocast)


def _made(module: Any, seed: int, generator: Generator, load_later: bool) -> tuple[torch.nn.Module, Recipes | None]:
    if isinstance(module, torch.nn.Module):
        return initialised(module, seed, generator, load_later) if has_meta(module) else (module, None)
    if not callable(module):
        change = "give an instance of torch.nn.Module, or a function without arguments that makes one"
        raise PlanError(BadModel(None, f"the model is {kind(module)}, not a module", change))
    if lacking := _arguments(module):
        name = getattr(module, "__name__", type(module).__name__)
        change = f"give a function without arguments: `lambda: {name}({lacking}=...)`"
        raise PlanError(BadModel(None, f"the model is `{name}`, which needs an argument `{lacking}`", change))
    with Deferred(seed, generator) as scope:
        try:
            made = module()
        except ReadsNumbers as error:
            raise PlanError(NumbersNeeded(None, "the function that makes the model", str(error))) from error
    if not isinstance(made, torch.nn.Module):
        change = "return an instance of torch.nn.Module"
        raise PlanError(BadModel(None, f"the function that makes the model returns {kind(made)}", change))
    return scope.finish(made)


def _arguments(make: Any) -> str:
    """The name of the first argument that a function or a constructor needs, or ""."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # one that is written in C
        return ""
    needed = (p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return next(needed, "")
