"""A model from the user's own file: what the function there returns."""

from dataclasses import replace

from ssdsl.model.deferred import Deferred, initial_draws
from ssdsl.model.errors import BadModel, FunctionMissing, ModelFileMissing, UserCodeFailed
from ssdsl.model.ops.registry import use_rows
from ssdsl.model.source import Model
from ssdsl.model.user_file import Mistakes, UserFile
from ssdsl.model.user_model import check_model
from ssdsl.runtime.bits import Generator
from ssdsl.text.source import Source

MISTAKES = Mistakes(ModelFileMissing, FunctionMissing, UserCodeFailed, BadModel)


def load_user(spec: Source, seed: int, generator: Generator, meta: bool) -> Model:
    """The model that `path/to/file.py:function` returns: the module, inputs (one batch or several) and axes.

    With `meta` the module's large weights are not made here, but get recipes.
    """
    file = UserFile.open(spec, MISTAKES)
    module = file.imported()
    use_rows(f"`OPS` of `{file.source.name}`", getattr(module, "OPS", ()))
    function = file.function(module)
    with (
        file.diagnosed(f"in `{file.name}`"),
        (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)),
    ):
        result = function()
    model = check_model(file.definition(function), spec.text, file.name, result)
    model = replace(model, generator=generator)
    return _deferred(model, scope) if isinstance(scope, Deferred) and model.recipes is None else model


def _deferred(model: Model, scope: Deferred) -> Model:
    """The model with its weights as recipes, and the numbers of its batches."""
    batches = tuple(scope.made(batch) for batch in model.batches)
    module, recipes = scope.finish(model.module)
    return replace(model, module=module, batches=batches, recipes=recipes)
