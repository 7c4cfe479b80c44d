"""Finds the row of an operator: of the model's file or the script, of ssdsl or a package, or by torch's tags.

torch registers operators once for a process, under unique names; so are their rows.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.ops.defined import module_of
from ssdsl.model.ops.errors import BadRows
from ssdsl.model.ops.families import elementwise, random
from ssdsl.model.ops.families.whole import all_whole
from ssdsl.model.ops.functions import WORDS, FunctionClass, apply_text
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.rows import ROWS
from ssdsl.record import replace
from ssdsl.runtime.program.recipes import operator_named
from ssdsl.text.diagnostic import PlanError

GROUP = "ssdsl.ops"  # the entry points under which packages give rows
_of_file: dict[str, Op] = {}  # the rows of the model's file that was loaded last
_of_script: dict[str, Op] = {}  # those that `add_rows` was given


def find(target: str) -> Op | None:
    """The row of an operator, by torch's full name with its overload: `aten::max.dim`; None if there is none."""
    for name in dict.fromkeys((target, target.partition(".")[0])):
        for rows in (_of_file, _of_script, ROWS, rows_of_packages()):
            if name in rows:
                return rows[name]
    return _by_tags(target)


def is_own(op: Op) -> bool:
    """Whether a row is ssdsl's own, or follows from torch's tags: no user wrote it."""
    return not op.unknown and not any(op.name in rows for rows in (_of_file, _of_script, rows_of_packages()))


def known(call: CapturedCall) -> Op | None:
    """The row of a captured call; without one, the row of an operator that is computed whole. None if no program can
    call the operator: it draws random numbers, or the module that defines it is unknown."""
    found = given(call) or (None if is_random(call) else _unknown(call.target))
    function = FunctionClass.of(call.target)
    return found and (found if function is None else _of_function(function, found, *_words(call)))


def given(call: CapturedCall) -> Op | None:
    """The row that ssdsl, a package or the model's file has for a captured call."""
    return find(row_name(call))


def row_name(call: CapturedCall) -> str:
    """The name of a call's operator in a row: torch's full name, and of a user's function the name of its class,
    `losses::ChunkedLoss`."""
    function = FunctionClass.of(call.target)
    return call.target.name() if function is None else function.row_name


def _words(call: CapturedCall) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the tensors of a call of a user's function, and its further words."""
    given = target_of(call.target).bound(call.args, {})
    return tuple(name for name in given if name not in WORDS), tuple(given[word] for word in WORDS[1:])


def row(call: CapturedCall) -> Op:
    """The row of a captured call. A call without one has an empty row: no plan splits it, each device computes it."""
    return known(call) or Op(call.target.name(), lambda _: None, module="torch")


@cache
def _unknown(target: Any) -> Op | None:
    """The row of an operator without one: each device computes all of it. None if its module is unknown."""
    module = module_of(target)
    return None if module is None else Op(target.name(), all_whole, module=module or "torch", unknown=True)


@cache
def _of_function(function: FunctionClass, found: Op, names: tuple[str, ...], words: tuple[str, ...]) -> Op:
    """The row of a call of a user's function, with the text of this call."""
    return replace(found, text=apply_text(function, names, *words), module=function.module)


def is_known(target: Any) -> bool:
    """Whether capture keeps calls of an overload as they are: it has a row, or draws random numbers."""
    return find(target.name()) is not None or draws(target)


def is_random(call: CapturedCall) -> bool:
    """Whether a call draws random numbers: always, or because a probability in its arguments is not zero."""
    return draws(call.target) or (_is_seeded(call.target) and any(call.argument(p) for p in _chances(call.target)))


def draws(target: Any) -> bool:
    """Whether an overload always draws random numbers, whatever its arguments are."""
    return _is_seeded(target) and not _chances(target)


def _is_seeded(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


def _chances(target: Any) -> list[str]:
    """The parameters of an attention or a recurrent layer that make it drop something."""
    return [p.name for p in target._schema.arguments if p.name in ("dropout_p", "dropout")]


@cache
def _by_tags(target: str) -> Op | None:
    """The row of an operator that torch tags as pointwise or random; None for other operators, and other namespaces."""
    overload = operator_named(target)
    if overload is None or not target.startswith("aten::"):
        return None
    if torch.Tag.pointwise in overload.tags and not _is_seeded(overload):
        return Op(target, elementwise.elementwise)
    return Op(target, random.noise) if draws(overload) else None


# -- rows of others ---------------------------------------------------------------------------------------------------


def use_rows(source: str, given: Any) -> None:
    """Uses the rows of a model's file in place of those of the file before; `source` is its name.

    Raises PlanError if they are no rows, or one is for an operator that has a row.
    """
    rows = _checked(source, given)
    _of_file.clear()
    _of_file.update(rows)


def add_rows(rows: Sequence[Op]) -> None:
    """Adds rows of operators for all models of this process, such as those of `ssdsl.engine` in a script.

    Raises PlanError if they are no rows, or one is for an operator that has a row of ssdsl's.
    """
    _of_script.update(_checked("`ssdsl.add_rows`", rows))


@cache
def rows_of_packages() -> Mapping[str, Op]:
    """The rows that installed packages give under the entry points `ssdsl.ops`.

    Raises PlanError for a package whose entry point fails or gives anything else.
    """
    found: dict[str, Op] = {}
    for entry in entry_points(group=GROUP):
        found.update(_checked(f"the entry point `{entry.name}` of `{_package(entry)}`", _loaded(entry)))
    return found


def _loaded(entry: EntryPoint) -> Any:
    """A list of rows, a function that returns one, or a module that has one as `OPS`."""
    try:
        found = entry.load()
        found = getattr(found, "OPS", found)
        return found() if callable(found) else found
    except Exception as error:  # a package may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise PlanError(BadRows(None, f"the entry point `{entry.name}` of `{_package(entry)}`", reason)) from error


def _package(entry: EntryPoint) -> str:
    """The name of an entry point's package; the place that it loads, if the package is unknown."""
    return entry.dist.name if entry.dist else entry.value


def _checked(source: str, given: Any) -> dict[str, Op]:
    """A list of rows by the operators' names. Raises PlanError; `source` says in the error who gave them."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(op, Op) for op in given):
        raise PlanError(BadRows(None, source, "the rows are no list of `ssdsl.Op`"))
    known = [op.name for op in given if op.name in ROWS]
    if known:
        raise PlanError(BadRows(None, source, f"ssdsl has a row for `{known[0]}` itself"))
    return {op.name: op for op in given}
