"""A failure made small: whatever can be left out while it stays the same failure is left out."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from bench.fuzz.trial import Case, Outcome
from ssdsl.record import replace

T = TypeVar("T")


def smallest(
    case: T, outcome: Outcome, limit_s: float, attempt: Callable[[T], Outcome], simpler: Callable[[T], Iterable[T]]
) -> tuple[T, Outcome]:
    """What cannot be made simpler and stays the same failure, or the simplest that was found within the time."""
    end = time.monotonic() + limit_s
    tried = {case}
    going = True
    while going:
        going = False
        for smaller in simpler(case):
            if smaller in tried:
                continue
            if time.monotonic() > end:
                return case, outcome
            tried.add(smaller)
            result = attempt(smaller)
            if (result.kind, result.sign) == (outcome.kind, outcome.sign):
                case, outcome, going = smaller, result, True
                break
    return case, outcome


def smaller_cases(case: Case) -> Iterator[Case]:
    """Cases one step simpler, the boldest steps first."""
    for plan in simpler_plans(case.plan):
        yield replace(case, plan=plan)
    for recipe in case.recipe.smaller():
        yield replace(case, recipe=recipe)
        for n in range(len(recipe.layers), len(case.recipe.layers)):  # a layer fewer: the last ones move up
            for k in range(n + 1):
                yield replace(case, recipe=recipe, plan=tuple(_renumbered(s, k) for s in case.plan))
    if case.steps > 1:
        yield replace(case, steps=1)
    if case.optimizer != "sgd":
        yield replace(case, optimizer="sgd")


def simpler_plans(plan: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Plans that are one step simpler."""
    if any("stage" in s for s in plan):  # no stages at all
        mesh = next(s for s in plan if s.startswith("mesh"))
        name = mesh.removeprefix("mesh ").partition("(")[0]
        kept = [s for s in plan if "stage" not in s and not s.startswith(("mesh", "assign", "let", "use"))]
        yield (mesh, *kept, f"assign model to {name}")
    for n in range(len(plan)):
        yield (*plan[:n], *plan[n + 1 :])
    for n, statement in enumerate(plan):
        for simpler in _statements(statement):
            yield (*plan[:n], simpler, *plan[n + 1 :])


def _statements(text: str) -> Iterator[str]:
    """One statement said in simpler ways."""
    lines = text.splitlines()
    if len(lines) > 2:
        yield from ("\n".join([*lines[:n], *lines[n + 1 :]]) for n in range(1, len(lines)))
    head, into, targets = text.partition(" into ")
    parts = re.split(r", (?![^\[]*\])", targets)
    if into and len(parts) > 1:
        yield from (f"{head} into {', '.join(parts[:n] + parts[n + 1 :])}" for n in range(len(parts)))
    if text.startswith("mesh "):
        yield from (text.replace(axis, "") for axis in re.findall(r", \w+ = 1\b|\b\w+ = 1, ", text))
    if text.startswith("let stage = ["):
        yield f"let stage = balance(model, {text.count(', model[') + 1})"
    if text.startswith(("split", "recompute", "order")):
        yield re.sub(
            r"\(model - model\[[^\]]*\]\)|model\[[^\]]*\]|stage\[\d\]|model\.\w+(?= by)", "model", text, count=1
        )
    for found in re.finditer(r"= (\d+)", text):
        number = int(found[1])
        for less in sorted({1, 2, number - 1}):
            if 0 < less < number:
                yield f"{text[: found.start()]}= {less}{text[found.end() :]}"


def _renumbered(statement: str, gone: int) -> str:
    """Names of layers after one has gone."""
    return re.sub(r"\bh\.(\d+)", lambda m: f"h.{int(m[1]) - (int(m[1]) > gone)}", statement)
