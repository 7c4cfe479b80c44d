"""Imports a function from the user's own file, which `--model` or `--data` names, and reports where it failed."""

import contextlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ssdsl.lang.suggest import nearest, suggest
from ssdsl.model.capture.source_line import Place
from ssdsl.model.load.errors import BadModel, FunctionMissing, ModelFileMissing, NumbersNeeded, UserCodeFailed
from ssdsl.model.load.unmaterialised import ReadsNumbers
from ssdsl.record import Record
from ssdsl.runtime.program.user_module import USER_PREFIX, import_file
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


class Mistakes(Record):
    """The diagnostics of an option: no such file, no such function, an exception, a function that is unusable."""

    no_file: type[ModelFileMissing]
    no_function: type[FunctionMissing]
    failed: type[UserCodeFailed]
    bad: type[BadModel]


class UserFile(Record):
    """The user's file and the function in it that the option (the source `spec`) names."""

    spec: Source
    path: Path
    name: str
    source: Source
    mistakes: Mistakes

    @classmethod
    def open(cls, spec: Source, mistakes: Mistakes) -> "UserFile":
        """The file of `path/to/file.py:function`."""
        path, colon, function = spec.text.rpartition(":")
        if not colon or function.endswith(".py"):
            path, function = spec.text, ""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PlanError(mistakes.no_file(Span(spec, 0, len(path)), path, reason.lower())) from error
        return cls(spec, Path(path), function, Source(path, text), mistakes)

    def imported(self) -> ModuleType:
        """Runs the file as a module; its folder comes first on the path, as when Python runs a script."""
        with self.diagnosed("while it was imported"):
            return import_file(self.path, self._module)

    def module(self) -> ModuleType:
        """The module of the file, imported now unless another option has imported it."""
        known = sys.modules.get(self._module)
        return known if known is not None and known.__file__ == str(self.path.resolve()) else self.imported()

    @property
    def _module(self) -> str:
        return f"{USER_PREFIX}{self.path.stem}"

    def function(self, module: ModuleType) -> Any:
        """The function that the option names; raises PlanError if there is none, or it needs arguments."""
        function = getattr(module, self.name, None) if self.name else None
        if not callable(function):
            raise PlanError(self._missing(module))
        if lacking := needed(function):
            fact = f"function `{self.name}` needs the argument `{lacking[0]}`"
            change = "give every parameter a default value"
            raise PlanError(self.mistakes.bad(self.definition(function), fact, change))
        return function

    def definition(self, function: Any) -> Span | None:
        """The line where a function begins, in this file or in the one that it is imported from; None if there is no
        such file."""
        own = inspect.unwrap(function)
        if not isinstance(own, FunctionType):
            return None
        file, number = own.__code__.co_filename, own.__code__.co_firstlineno
        return self.line_span(number) if file == str(self.path.resolve()) else Place(file, number).span()

    def line_span(self, number: int) -> Span:
        """The text of one line, counted from one, without its indentation."""
        lines = self.source.text.splitlines(keepends=True)
        start = sum(map(len, lines[: number - 1]))
        line = lines[number - 1].rstrip() if number <= len(lines) else ""
        return Span(self.source, start + len(line) - len(line.lstrip()), start + len(line))

    @contextlib.contextmanager
    def diagnosed(self, when: str) -> Iterator[None]:
        """A context in which an exception of the user's code becomes a diagnostic at its line, and prints go to
        stderr."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except PlanError:
            raise
        except ReadsNumbers as error:
            raise PlanError(NumbersNeeded(self._place(error), self.source.name, str(error))) from error
        except (Exception, SystemExit) as error:
            if _is_interrupted(error):
                raise KeyboardInterrupt from error
            raise PlanError(self._failure(when, error)) from error

    def _failure(self, when: str, error: BaseException) -> UserCodeFailed:
        text = traceback.format_exception_only(error)[-1].strip()
        first, _, rest = text.partition("\n")
        change = "correct the file; it has to run as `python` would run it"
        if isinstance(error, ModuleNotFoundError):
            change = f"install `{error.name}`, or correct the import"
        span = self._place(error)
        return self.mistakes.failed(span, self.source.name, when, first, rest if span else text, change)

    def _place(self, error: BaseException) -> Span | None:
        """The last line of the user's file that was running."""
        path = str(self.path.resolve())
        if isinstance(error, SyntaxError) and error.filename == path:
            number = error.lineno or 0
        else:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
            number = (lines[-1] or 0) if lines else 0
        return self.line_span(number) if number else None

    def _missing(self, module: ModuleType) -> FunctionMissing:
        items = vars(module).items()
        functions = {n: v for n, v in items if inspect.isfunction(v) and v.__module__ == module.__name__}
        own = sorted(functions, key=lambda n: (n.startswith("_"), len(needed(functions[n])) > 0))  # helpers last
        path, option = self.source.name, self.spec.name
        fact = f"`{path}` has no function `{self.name}`" if self.name else f"`{option} {path}` names no function"
        span = Span(self.spec, len(path) + 1 if self.name else 0, len(self.spec.text))
        example = [*nearest(self.name, own), *own, "function"][0]
        known = ", ".join(own) or "no functions"
        return self.mistakes.no_function(span, suggest(self.name, own), fact, path, known, example)


def needed(function: Any) -> list[str]:
    """The names of the arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one that is written in C
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _is_interrupted(error: BaseException | None) -> bool:
    """Whether an error follows from Ctrl-C: modules in C, and some in Python, report any exception of what they import
    as an error of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
