"""Loads a model from a function in the user's own file.

The function returns a module, the inputs of one batch or several, the names of their axes, and the place of the loss.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from ssdsl.model.load.batch import Batch, difference, named_axes, named_batch
from ssdsl.model.load.errors import (
    BadInputs,
    BadModel,
    BuiltWithNumbers,
    FunctionMissing,
    ModelFileMissing,
    UserCodeFailed,
)
from ssdsl.model.load.model import Model
from ssdsl.model.load.outputs import reads_batch
from ssdsl.model.load.uncompiled import uncompiled
from ssdsl.model.load.unmaterialised import Deferred, Fewer, TooMany, initial_draws
from ssdsl.model.load.user_file import Mistakes, UserFile
from ssdsl.model.ops.registry import use_rows
from ssdsl.record import replace
from ssdsl.runtime.data.batch import kind
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

MOST = 100_000_000  # a model that makes more numbers is built without them, if the command does not train it
MISTAKES = Mistakes(ModelFileMissing, FunctionMissing, UserCodeFailed, BadModel)


def load_user(spec: Source, seed: int, generator: Generator, meta: bool, trains: bool = True) -> Model:
    """The model that `path/to/file.py:function` returns: the module, inputs (one batch or several) and axes.

    With `meta` the module's large weights have no numbers, but recipes, from which ranks make their parts later. A
    command that does not train (`trains`) gets a model of more than MOST numbers in this way too, unless its
    constructor needs numbers; the function is then called a second time. Raises PlanError.
    """
    file = UserFile.open(spec, MISTAKES)
    module = file.imported()
    use_rows(f"`OPS` of `{file.source.name}`", getattr(module, "OPS", ()))
    function = file.function(module)
    if meta or trains:
        return _called(file, function, seed, generator, meta)
    try:
        return _called(file, function, seed, generator, False, Fewer(MOST))
    except TooMany:
        return _without_numbers(file, function, seed, generator)


def _without_numbers(file: UserFile, function: Any, seed: int, generator: Generator) -> Model:
    """The model as with `--meta`. If its constructor needs numbers, it is built with them, and has a remark that says
    so."""
    try:
        return _called(file, function, seed, generator, True)
    except PlanError as error:
        cause = error.diagnostics[0]
        model = _called(file, function, seed, generator, False)
        slow = BuiltWithNumbers(cause.span, file.spec.text, cause.text(cause.title))
        return replace(model, remarks=(*model.remarks, slow))


def _called(
    file: UserFile, function: Any, seed: int, generator: Generator, meta: bool, counted: Fewer | None = None
) -> Model:
    with (
        file.diagnosed(f"in `{file.name}`"),
        (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)),
        counted or nullcontext(),
    ):
        result = function()
    model = check_model(file.definition(function), file.spec.text, file.name, result)
    model = replace(model, generator=generator)
    return _deferred(model, scope) if isinstance(scope, Deferred) and model.recipes is None else model


def _deferred(model: Model, scope: Deferred) -> Model:
    """The model with recipes for its weights, and with real numbers in its batches."""
    batches = tuple(scope.made(batch) for batch in model.batches)
    module, recipes = scope.finish(model.module)
    return replace(model, module=module, batches=batches, recipes=recipes)


PARTS = "module, inputs, axes"


def check_model(span: Span | None, name: str, function: str, result: Any) -> Model:
    """The model that the function returned as `result`; `span` shows the function. Raises PlanError at the first thing
    that is wrong, because each check relies on those before it."""
    if isinstance(result, Model):
        return replace(result, name=name)
    if not (isinstance(result, tuple) and 2 <= len(result) <= 4):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else kind(result)
        fact = f"function `{function}` returns {what}, not ({PARTS})"
        raise PlanError(BadModel(span, fact, f"return {PARTS}"))
    module, inputs, axes, loss = (*result, None, None)[:4]
    if not isinstance(module, torch.nn.Module):
        fact = f"function `{function}` returns {kind(module)} where its module should be"
        raise PlanError(
            BadModel(span, fact, "return an instance of torch.nn.Module first: return MyModel(), inputs, axes")
        )
    module, remarks = uncompiled(module, span)
    checked_weights(span, module)
    checked_loss(span, loss)
    batches = _batches(span, module, inputs, reads_batch(loss))
    return Model(name, module, batches, named_axes(span, module, batches[0], axes), loss=loss, remarks=remarks)


def checked_weights(span: Span | None, module: torch.nn.Module) -> None:
    """Raises PlanError if a weight or buffer of a lazy module has no shape yet."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            fact = f"`{name}` has no shape before the first forward: its module is a lazy one of torch"
            raise PlanError(BadModel(span, fact, "call the module once before you return it: module(**inputs)"))


def checked_loss(span: Span | None, loss: Any) -> None:
    """Raises PlanError unless `loss` is a name, a position, a function, several of these by name, or None."""
    places = loss.values() if isinstance(loss, Mapping) else [loss]
    if loss is None or (places and all(isinstance(p, (str, int)) or callable(p) for p in places)):
        return
    change = "give a name, a position in a tuple, or a function of outputs and batch; of several losses a dictionary"
    raise PlanError(BadModel(span, f"the loss is {kind(loss)}, which does not say where it is", change))


def _batches(span: Span | None, module: torch.nn.Module, inputs: Any, for_loss: bool) -> tuple[Batch, ...]:
    many = inputs if isinstance(inputs, list) else [inputs]
    if not many:
        raise PlanError(BadInputs(span, "the list of batches is empty", "give at least one batch"))
    batches = tuple(named_batch(span, module, one, for_loss) for one in many)
    for number, batch in enumerate(batches):
        if unlike := difference(batches[0], batch):
            fact = f"batch {number} differs from batch 0: {unlike}"
            raise PlanError(BadInputs(span, fact, "make all batches alike: the plan is compiled once for all of them"))
    return batches
