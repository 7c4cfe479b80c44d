"""Makes a model of a module in Python, or of a function that makes one, and a batch as it comes from a loader.

A module on the meta device does not record what its constructors did. But modules that own weights know how to
initialise them: `reset_parameters`, as torch's modules have, and the `_init_weights(module)` of the model around it, as
in transformers and many others, or its `init_weights()`. They are called on a copy without numbers, and their
operations become the recipes of the weights. A weight that no initialiser writes to has no recipe: that is an error
with its name.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ssdsl.model.load.batch import named_axes, named_batch
from ssdsl.model.load.errors import BadModel, NoInitialiser, NumbersNeeded
from ssdsl.model.load.from_file import checked_loss, checked_weights
from ssdsl.model.load.model import Model
from ssdsl.model.load.outputs import Where, reads_batch
from ssdsl.model.load.uncompiled import uncompiled
from ssdsl.model.load.unmaterialised import REGISTERED, Deferred, ReadsNumbers, named_tensors, tensors_in, with_tensors
from ssdsl.model.load.user_file import needed
from ssdsl.runtime.data.batch import kind
from ssdsl.runtime.program.recipes import Recipes
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.diagnostic import Diagnostic, PlanError

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

    - `module`: an `nn.Module`, or a function without arguments that makes one. If it is on the meta device, or a
      function makes it, each process makes only the weights that it holds: by the modules' own initialisers, or as the
      function would. With `load_later` the weights of a module on meta are NaN until a checkpoint is loaded.
    - `example`: a global batch: the forward's arguments by name, or in the order of its parameters.
    - `axes`: names of the axes of inputs, `{"x": ("batch", "seq")}`; those that it leaves out are named by convention
      (`batch.py`).
    - `name`: of the model in reports; by default that of its class.
    - `loss`: the place of the loss in what the forward returns (`outputs.py`).
    - `autocast`: forward and loss run under `torch.autocast` to this type.
    - `seed`, `generator`: of the weights that are made later, and of dropout.

    Raises PlanError, and what the function raises.
    """
    checked_loss(None, loss)
    made, recipes, remarks = _made(module, seed, generator, load_later)
    checked_weights(None, made)
    batch = named_batch(None, made, example, reads_batch(loss))
    found = named_axes(None, made, batch, axes)
    name = name or type(made).__name__
    return Model(name, made, (batch,), found, generator, recipes, loss, autocast, remarks=remarks)


def _made(
    module: Any, seed: int, generator: Generator, load_later: bool
) -> tuple[torch.nn.Module, Recipes | None, tuple[Diagnostic, ...]]:
    """The module, recipes for its weights if it has no numbers, and warnings."""
    if isinstance(module, torch.nn.Module):
        own, remarks = uncompiled(module, None)
        return *(initialised(own, seed, generator, load_later) if has_meta(own) else (own, None)), remarks
    if not callable(module):
        change = "give an instance of torch.nn.Module, or a function without arguments that makes one"
        raise PlanError(BadModel(None, f"the model is {kind(module)}, not a module", change))
    if lacking := needed(module):
        name = getattr(module, "__name__", type(module).__name__)
        change = f"give a function without arguments: `lambda: {name}({lacking[0]}=...)`"
        raise PlanError(BadModel(None, f"the model is `{name}`, which needs an argument `{lacking[0]}`", change))
    with Deferred(seed, generator) as scope:
        try:
            made = module()
        except ReadsNumbers as error:
            raise PlanError(NumbersNeeded(None, "the function that makes the model", str(error))) from error
    if not isinstance(made, torch.nn.Module):
        change = "return an instance of torch.nn.Module"
        raise PlanError(BadModel(None, f"the function that makes the model returns {kind(made)}", change))
    made, remarks = uncompiled(made, None)
    return *scope.finish(made), remarks


# -- a module on the meta device ---------------------------------------------------------------------------------------


OWN = ("reset_parameters", "_reset_parameters")  # initialise a module's own weights
MOST = 5  # errors that are reported


def has_meta(module: nn.Module) -> bool:
    """Whether some weight or buffer of a module is on the meta device."""
    return any(t.is_meta for t in (*module.parameters(), *module.buffers()))


def initialised(
    module: nn.Module, seed: int, generator: Generator, load_later: bool = False
) -> tuple[nn.Module, Recipes]:
    """A copy of a module that is on the meta device, and recipes for its weights and buffers, which keep numbers that
    they have.

    With `load_later`, weights without an initialiser are NaN until a checkpoint is loaded. Raises PlanError if an
    initialiser is missing, or needs the numbers of a large tensor.
    """
    lacking: list[Diagnostic] = [*_unregistered(module)]
    made = copy.deepcopy(module)
    on_meta = {name for name, tensor in named_tensors(made).items() if tensor.is_meta}
    loaded = on_meta.intersection(module.state_dict()) if load_later else set()
    with Deferred(seed, generator) as scope, torch.no_grad():
        with_tensors(made, lambda name, tensor: _new(tensor, name in loaded) if name in on_meta else tensor)
        try:
            _initialise(made, on_meta)
        except ReadsNumbers as error:
            raise PlanError(NumbersNeeded(None, "an initialiser", str(error))) from error
    made, recipes = scope.finish(made)
    lacking += [_without(made, name) for name in sorted(on_meta - loaded) if recipes.is_undefined(name)]
    if lacking:
        raise PlanError(*lacking[:MOST])
    return made, recipes


def _new(tensor: torch.Tensor, loaded: bool) -> torch.Tensor:
    """A tensor in place of one on the meta device: NaN or zero if a checkpoint will be loaded, else undefined."""
    if loaded:
        return torch.full(tensor.shape, math.nan if tensor.is_floating_point() else 0, dtype=tensor.dtype)
    if tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _initialise(root: nn.Module, on_meta: set[str]) -> None:
    """Calls the initialisers of the modules that own tensors without numbers, the inner ones first."""
    modules = dict(root.named_modules())
    for path, owner in reversed(modules.items()):
        if on_meta.isdisjoint(_own_names(path, owner)):
            continue
        for name in OWN:
            if _takes(owner, name, 0):
                getattr(owner, name)()
                break
        around = (modules[p] for p in _upwards(path) if p in modules)
        if model := next((m for m in around if _takes(m, "_init_weights", 1)), None):
            model._init_weights(owner)
    # `init_weights()` initialises a module with all inside it, so nothing there may have numbers. transformers' own, in
    # modules with `_init_weights`, is left out: what it does has been done above
    done: tuple[str, ...] = ()
    for path, module in modules.items():
        if _takes(module, "init_weights", 0) and not _takes(module, "_init_weights", 1) and not path.startswith(done):
            done = (*done, f"{path}." if path else "")
            if all(f"{path}.{name}".lstrip(".") in on_meta for name in named_tensors(module)):
                module.init_weights()


def _takes(module: nn.Module, name: str, count: int) -> bool:
    """Whether a module has this method, and it needs `count` arguments."""
    method = getattr(type(module), name, None)
    return callable(method) and len(needed(method)) == 1 + count  # `self` is one


def _upwards(path: str) -> Iterator[str]:
    """A module's path and those of the modules around it, the innermost first."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _own_names(path: str, module: nn.Module) -> list[str]:
    return [f"{path}.{name}".lstrip(".") for name in (*module._parameters, *module._buffers)]


def _without(root: nn.Module, name: str) -> NoInitialiser:
    path, _, last = name.rpartition(".")
    owner = root.get_submodule(path)
    what = "weight" if last in owner._parameters else "buffer"
    method = f"define a method `reset_parameters` of `{type(owner).__name__}` that initialises it"
    later = ", or load a checkpoint: `load_later=True`" if name in root.state_dict() else ""
    return NoInitialiser(None, f"{what} `{name}`", "has no initialiser", method, later)


def _unregistered(root: nn.Module) -> Iterator[NoInitialiser]:
    """An error for each attribute that has tensors on the meta device and is no weight or buffer."""
    registered = {id(t) for t in named_tensors(root).values()}
    for path, module in root.named_modules():
        for name, value in vars(module).items():
            tensors = tensors_in(value) if name not in REGISTERED else []
            if any(t.is_meta and id(t) not in registered for t in tensors):
                where = f"attribute `{f'{path}.{name}'.lstrip('.')}`"
                method = f"register it as a buffer, and define a method `reset_parameters` of `{type(module).__name__}`"
                yield NoInitialiser(None, where, "is no buffer, so nothing makes it", method)
