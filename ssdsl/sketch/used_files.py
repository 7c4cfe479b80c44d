"""Finds what a plan leaves open in files that it uses: no search fills it in, because holes are in the plan's own text.

Only definitions that the plan's imports reach count, and only files beside the plan: the standard library leaves
nothing open.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.plan.statements.param import names_in
from ssdsl.sketch.errors import OpenInUsedFile
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

# calls that a search completes, each with the key of its answer
ANSWERS = {"cut": "before", "schedule": "ahead", "widths": "each", "slices": "each"}
Files = tuple[Path, ...]
Defined = nodes.DefStatement | nodes.LetStatement | nodes.ParamStatement


def open_in_used_files(script: nodes.Script, folder: Path | None) -> tuple[OpenInUsedFile, ...]:
    """A warning for each `param ... in` and each call without its answer that the plan takes from another file."""
    return tuple(_beside(script.statements, (folder or Path()).resolve(), ()))


def _beside(statements: tuple[nodes.Statement, ...], folder: Path, above: Files) -> Iterator[OpenInUsedFile]:
    """The warnings of all files that these statements use; `above` are the files that lead there."""
    for s in statements:
        if isinstance(s, nodes.UseStatement) and isinstance(s.module, nodes.Text):
            with contextlib.suppress(PlanError, OSError, ValueError, RuntimeError):  # known only where the plan is read
                path = (folder / s.module.value).resolve()
                if path not in above:
                    yield from _in_file(s, path, s.module.value, (*above, path))


def _in_file(use: nodes.UseStatement, path: Path, name: str, above: Files) -> Iterator[OpenInUsedFile]:
    script = parse(read_source(path, name))
    reached, names = _reached(script, {word.text for word in use.names})
    for s in reached:
        if isinstance(s, nodes.ParamStatement) and s.domain is not None:
            yield OpenInUsedFile(Span(s.span.source, s.span.start, s.domain.span.end), s.name.text)
        calls = nodes.calls_of(s, ANSWERS)
        yield from (OpenInUsedFile(call.span) for name, call in calls if not _has(call, ANSWERS[name]))
    uses = (s for s in script.statements if isinstance(s, nodes.UseStatement))
    further = tuple(s for s in uses if not names.isdisjoint(word.text for word in s.names))
    yield from _beside(further, path.parent, above)


def _reached(script: nodes.Script, names: set[str]) -> tuple[list[Defined], set[str]]:
    """The definitions of these names with everything they read, in the order of the text; and all names that they
    read."""
    defined = {s.name.text: s for s in script.statements if isinstance(s, Defined)}
    left, seen = [*names], set(names)
    while left:
        if (s := defined.get(left.pop())) is not None:
            new = {name.text for name in names_in(s)} - seen
            seen |= new
            left += sorted(new)
    return [s for name, s in defined.items() if name in seen], seen


def _has(call: nodes.Call, key: str) -> bool:
    """Whether a call has an argument with this key."""
    return any(isinstance(a, nodes.Keyed) and a.name.text == key for a in call.arguments)
