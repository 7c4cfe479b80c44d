"""Cuts a run of operators around one of its lines, which torch cannot compile.

    def mlp(x, weight):              def mlp_1(weight, x):        def mlp(x, weight):
        mm = x @ weight                  mm = x @ weight              (mm,) = mlp_1(weight, x)
        sort = odd(mm)                   return (mm,)                 (sort,) = mlp_2(mm)
        relu = sort.relu()                                            (relu,) = mlp_3(sort)
        return relu                  ...                              return relu

A line of a piece has the number that it has in the role's file, so that errors tell it.
"""

import ast
import inspect
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

Function = Callable[..., Any]
TEXT = "__text__"  # the variable of a role's module that has the text of its file


class RunLines(NamedTuple):
    """A run, and its assignments and its `return`, of which none is known of a function with branches or loops."""

    run: Function
    body: tuple[ast.stmt, ...]

    @property
    def told(self) -> str:
        """The text of a run of one line; the name of another one."""
        return ast.unparse(self.body[0]) if len(self.body) == 2 else self.run.__name__

    def cut(self, number: int | None, called: "Callable[[RunLines], Function]") -> Function | None:
        """The run as a function that calls its pieces, as `called` says: the line with a number, and those in front of
        it and behind it; two halves without a number. None for a run of one line."""
        if len(self.body) <= 2:
            return None
        *body, end = self.body
        at = next((n for n, line in enumerate(body) if line.lineno == number), None)
        cuts = [0, len(body) // 2, len(body)] if at is None else sorted({0, at, at + 1, len(body)})
        functions: dict[str, Function] = {}
        calls: list[ast.stmt] = []
        for start, stop in pairwise(cuts):
            name = f"{self.run.__name__}_{len(calls) + 1}"
            makes = _names(body[start:stop], ast.Store)
            reads = sorted((_names(body[start:stop], ast.Load) - makes).intersection(self.run.__code__.co_varnames))
            results = _tuple(makes & _names(self.body[stop:], ast.Load))
            lines = (*body[start:stop], *ast.parse(f"return {results}").body)
            functions[name] = called(RunLines(_defined(name, reads, lines, self.run), lines))
            calls += ast.parse(f"{results} = {name}({', '.join(reads)})").body
        whole = _defined(self.run.__name__, inspect.signature(self.run).parameters, (*calls, end), self.run)
        whole.__globals__.update(functions)
        return whole


def lines_of(run: Function) -> RunLines:
    """The lines of a function of a role's file, with their numbers there."""
    known = ast.parse(run.__globals__[TEXT]).body
    (definition,) = (d for d in known if isinstance(d, ast.FunctionDef) and d.name == run.__name__)
    *body, end = definition.body
    is_plain = isinstance(end, ast.Return) and all(isinstance(line, (ast.Assign, ast.With)) for line in body)
    return RunLines(run, (*body, end) if is_plain else ())


def refused_line(run: Function, error: Exception) -> int | None:
    """The number of the line of a run at which torch's compiler stopped; None if the error does not say."""
    frames = getattr(error, "real_stack", None) or ()
    lines = [f.lineno for f in frames if f.filename == run.__code__.co_filename and f.name == run.__name__]
    return lines[-1] if lines else None


def _defined(name: str, parameters: Iterable[str], body: Iterable[ast.stmt], run: Function) -> Function:
    """A function of these statements in the file of a run, with a scope of its own."""
    tree = ast.parse(f"def {name}({', '.join(parameters)}): pass")
    tree.body[0].body = [*body]  # type: ignore[attr-defined]
    scope: dict[str, Function] = {**run.__globals__}
    exec(compile(tree, run.__code__.co_filename, "exec"), scope)
    return scope[name]


def _names(lines: Iterable[ast.stmt], context: type[ast.expr_context]) -> set[str]:
    nodes = (node for line in lines for node in ast.walk(line))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _tuple(names: Iterable[str]) -> str:
    return f"({', '.join(sorted(names))}{',' if names else ''})"
