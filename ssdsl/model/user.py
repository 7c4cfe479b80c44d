"""A model from the user's own file: find the function, run it, say where it failed."""

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ssdsl.lang.suggest import nearest, suggest
from ssdsl.model.deferred import Deferred, ReadsNumbers, initial_draws
from ssdsl.model.errors import BadModel, FunctionMissing, ModelFileMissing, NumbersNeeded, UserCodeFailed
from ssdsl.model.ops.registry import use_rows
from ssdsl.model.source import USER_PREFIX, Model
from ssdsl.model.user_model import check_model
from ssdsl.runtime.bits import Generator
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


@dataclass(frozen=True, slots=True)
class _File:
    """The user's file and the function in it, as `--model` (the source `spec`) names them."""

    spec: Source
    path: Path
    function: str
    source: Source

    def line_span(self, number: int) -> Span:
        """The text of one line, counted from one, without its indentation."""
        lines = self.source.text.splitlines(keepends=True)
        start = sum(map(len, lines[: number - 1]))
        line = lines[number - 1].rstrip() if number <= len(lines) else ""
        return Span(self.source, start + len(line) - len(line.lstrip()), start + len(line))


def load_user(spec: Source, seed: int, generator: Generator, meta: bool) -> Model:
    """The model that `path/to/file.py:function` returns: the module, inputs (one batch or several) and axes.

    With `meta` the module's large weights are not made here, but get recipes.
    """
    file = _open(spec)
    with _diagnosed(file, "while it was imported"):
        module = _import(file)
    use_rows(f"`OPS` of `{file.source.name}`", getattr(module, "OPS", ()))
    function = _function(file, module)
    with (
        _diagnosed(file, f"in `{file.function}`"),
        (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)),
    ):
        result = function()
    model = check_model(_definition(file, function), spec.text, file.function, result)
    model = replace(model, generator=generator)
    return _deferred(model, scope) if isinstance(scope, Deferred) and model.recipes is None else model


def _deferred(model: Model, scope: Deferred) -> Model:
    """The model with its weights as recipes, and the numbers of its batches."""
    batches = tuple(scope.made(batch) for batch in model.batches)
    module, recipes = scope.finish(model.module)
    return replace(model, module=module, batches=batches, recipes=recipes)


def _open(spec: Source) -> _File:
    path, colon, function = spec.text.rpartition(":")
    if not colon or function.endswith(".py"):
        path, function = spec.text, ""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PlanError(ModelFileMissing(Span(spec, 0, len(path)), path, reason.lower())) from error
    return _File(spec, Path(path), function, Source(path, text))


def _import(file: _File) -> ModuleType:
    """Run the file as a module of its own; its folder comes first on the path, as when Python runs a script."""
    sys.path.insert(0, str(file.path.resolve().parent))
    loaded = importlib.util.spec_from_file_location(f"{USER_PREFIX}{file.path.stem}", file.path.resolve())
    assert loaded is not None and loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    sys.modules[loaded.name] = module
    loaded.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _diagnosed(file: _File, when: str) -> Iterator[None]:
    """Turn an exception of the user's code into a diagnostic at the user's line; what it prints goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except PlanError:
        raise
    except ReadsNumbers as error:
        raise PlanError(NumbersNeeded(_place(file, error), file.source.name, str(error))) from error
    except (Exception, SystemExit) as error:
        raise PlanError(_failure(file, when, error)) from error


def _failure(file: _File, when: str, error: BaseException) -> UserCodeFailed:
    text = traceback.format_exception_only(error)[-1].strip()
    first, _, rest = text.partition("\n")
    change = "correct the file; it has to run as `python` would run it"
    if isinstance(error, ModuleNotFoundError):
        change = f"install `{error.name}`, or correct the import"
    span = _place(file, error)
    return UserCodeFailed(span, file.source.name, when, first, rest if span else text, change)


def _place(file: _File, error: BaseException) -> Span | None:
    """The last line of the user's file that was running."""
    path = str(file.path.resolve())
    if isinstance(error, SyntaxError) and error.filename == path:
        number = error.lineno or 0
    else:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        number = (lines[-1] or 0) if lines else 0
    return file.line_span(number) if number else None


def _function(file: _File, module: ModuleType) -> Any:
    """The function that `--model` names; it must be one and need no arguments."""
    function = getattr(module, file.function, None) if file.function else None
    if not callable(function):
        raise PlanError(_missing(file, module))
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < 2]
    if needed:
        fact = f"function `{file.function}` needs the argument `{needed[0]}`"
        raise PlanError(BadModel(_definition(file, function), fact, "give every parameter a default value"))
    return function


def _definition(file: _File, function: Any) -> Span | None:
    return file.line_span(function.__code__.co_firstlineno) if isinstance(function, FunctionType) else None


def _missing(file: _File, module: ModuleType) -> FunctionMissing:
    own = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    path = file.source.name
    fact = f"`{path}` has no function `{file.function}`" if file.function else f"`--model {path}` names no function"
    span = Span(file.spec, len(path) + 1 if file.function else 0, len(file.spec.text))
    example = [*nearest(file.function, own), *own, "function"][0]
    return FunctionMissing(span, fact, suggest(file.function, own), path, ", ".join(own) or "no functions", example)
