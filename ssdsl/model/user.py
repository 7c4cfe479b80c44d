"""A model from the user's own file: what the function there returns."""

from dataclasses import replace
from typing import Any

from ssdsl.model.deferred import Deferred, Fewer, TooMany, initial_draws
from ssdsl.model.errors import BadModel, BuiltWithNumbers, FunctionMissing, ModelFileMissing, UserCodeFailed
from ssdsl.model.ops.registry import use_rows
from ssdsl.model.source import Model
from ssdsl.model.user_file import Mistakes, UserFile
from ssdsl.model.user_model import check_model
from ssdsl.runtime.bits import Generator
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

MOST = 100_000_000  # numbers of a model that is built with them where nothing needs them
MISTAKES = Mistakes(ModelFileMissing, FunctionMissing, UserCodeFailed, BadModel)


def load_user(spec: Source, seed: int, generator: Generator, meta: bool, trains: bool = True) -> Model:
    """The model that `path/to/file.py:function` returns: the module, inputs (one batch or several) and axes.

    With `meta` the module's large weights are not made here, but get recipes. Where nothing `trains`, so it is with a
    model that makes more than MOST numbers, if it can be built so; its function is called again then.
    """
    file = UserFile.open(spec, MISTAKES)
    module = file.imported()
    use_rows(f"`OPS` of `{file.source.name}`", getattr(module, "OPS", ()))
    function = file.function(module)
    if meta or trains:
        return _called(file, function, seed, generator, meta)
    try:
        with Fewer(MOST):
            return _called(file, function, seed, generator, False)
    except TooMany:
        return _without_numbers(file, function, seed, generator)


def _without_numbers(file: UserFile, function: Any, seed: int, generator: Generator) -> Model:
    """The model as by `--meta`; where its constructor cannot do without numbers, it has them, and says so."""
    try:
        return _called(file, function, seed, generator, True)
    except PlanError as error:
        cause = error.diagnostics[0]
        model = _called(file, function, seed, generator, False)
        return replace(model, remarks=(BuiltWithNumbers(cause.span, file.spec.text, cause.text(cause.title)),))


def _called(file: UserFile, function: Any, seed: int, generator: Generator, meta: bool) -> Model:
    with (
        file.diagnosed(f"in `{file.name}`"),
        (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)),
    ):
        result = function()
    model = check_model(file.definition(function), file.spec.text, file.name, result)
    model = replace(model, generator=generator)
    return _deferred(model, scope) if isinstance(scope, Deferred) and model.recipes is None else model


def _deferred(model: Model, scope: Deferred) -> Model:
    """The model with its weights as recipes, and the numbers of its batches."""
    batches = tuple(scope.made(batch) for batch in model.batches)
    module, recipes = scope.finish(model.module)
    return replace(model, module=module, batches=batches, recipes=recipes)
