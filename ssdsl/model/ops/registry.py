"""Which row an operator has: ssdsl's own, those of installed packages, those of the model's file, or torch's own tags.

Torch registers operators once for a process, under names that are unique; so are their rows.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from ssdsl.model.call import Call, schema_arguments
from ssdsl.model.found import Found
from ssdsl.model.graph import Operator
from ssdsl.model.ops import (
    attention,
    complex,
    contraction,
    ctc,
    elementwise,
    experts,
    image,
    linalg,
    loss,
    move,
    norm,
    random,
    reduce,
    scan,
    table,
)
from ssdsl.model.ops.errors import BadRows
from ssdsl.model.ops.measured import measured_or_all
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import parameters
from ssdsl.text.diagnostic import PlanError

GROUP = "ssdsl.ops"  # the entry points under which packages give rows
FAMILIES = (
    *(elementwise, contraction, attention, norm, table, reduce, scan, image, move, loss, random),
    *(experts, complex, linalg, ctc),
)

ROWS: Mapping[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
_of_file: dict[str, Op] = {}  # the rows of the model's file that was loaded last


def find(target: str) -> Op | None:
    """The row of an operator by its full name with its overload, as torch says it: `aten::max.dim`."""
    for name in dict.fromkeys((target, target.partition(".")[0])):
        for rows in (_of_file, ROWS, rows_of_packages()):
            if name in rows:
                return rows[name]
    return _by_tags(target)


def is_own(op: Op) -> bool:
    """Whether a row is ssdsl's, or follows from torch's tags: no user wrote it."""
    return op.name not in _of_file and op.name not in rows_of_packages()


def known(operator: Operator | Call) -> Op | None:
    """The row of a captured operator, or what experiments showed in place of one."""
    name = operator.target if isinstance(operator, Operator) else operator.target.name()
    return find(name) if operator.found is None else _of_experiment(name, operator.found)


def row(operator: Operator | Call) -> Op:
    """The row of a captured operator; what has none was refused when it was captured, or is computed once, whole."""
    name = operator.target if isinstance(operator, Operator) else operator.target.name()
    return known(operator) or Op(name, lambda _: None, module="torch")


@cache
def _of_experiment(name: str, found: Found) -> Op:
    return Op(
        name,
        found.signature,
        linear_in=found.linear_in,
        saved=measured_or_all,
        contraction=found.contraction,
        stops_gradient=not any(found.flows),
        module=found.module or "torch",
    )


def is_known(target: Any) -> bool:
    """Whether an overload keeps its name when the model is captured: it has a row, or draws numbers of itself."""
    return find(target.name()) is not None or draws(target)


def is_random(call: Call) -> bool:
    """Whether a call draws random numbers, of itself or because of a probability that is not zero."""
    return draws(call.target) or (_is_seeded(call.target) and any(call.argument(p) for p in _chances(call.target)))


def draws(target: Any) -> bool:
    """Whether an overload draws random numbers whatever its arguments are."""
    return _is_seeded(target) and not _chances(target)


def _is_seeded(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


def _chances(target: Any) -> list[str]:
    """The parameters of an attention or a recurrent layer that make it drop something."""
    return [p.name for p in schema_arguments(target) if p.name in ("dropout_p", "dropout")]


@cache
def _by_tags(target: str) -> Op | None:
    """The row of what torch calls pointwise: every axis of the results, broadcast."""
    overload = overload_of(target)
    if overload is None or not target.startswith("aten::"):
        return None
    if torch.Tag.pointwise in overload.tags and not _is_seeded(overload):
        return Op(target, elementwise.elementwise)
    return Op(target, random.noise) if draws(overload) else None


def overload_of(target: str) -> Any:
    """torch's object of a full name, or None where torch has no such operator."""
    namespace, _, rest = target.partition("::")
    kind, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), kind, None)
    return getattr(packet, overload or "default", None)


def is_linear(operator: Operator, partial: Iterable[int]) -> bool:
    """Whether the sum of an operator's results on parts is its result on the sum of these operands' parts.

    `partial` are the numbers of the operands that are partial sums; the others are the same for all parts.
    """
    return set(partial) in _together(operator)


def linear_with(operator: Operator, partial: Iterable[int]) -> frozenset[int]:
    """The operands that have to be addends where these are: of a sum all, and none where it is not linear in them.

    An operand that is whole becomes one by giving it to one part, and zeros to the others.
    """
    fitting = [t for t in _together(operator) if t.issuperset(partial)]
    return min(fitting, key=len, default=frozenset())


def _together(operator: Operator) -> list[frozenset[int]]:
    """The sets of operands in which an operator is linear together."""
    options = dict(operator.kwargs)
    rounds = options.get("rounding_mode") is not None or any(w in str(options.get("dtype")) for w in ("int", "bool"))
    names = parameters(operator)
    sets = [] if rounds else [t.split() for t in row(operator).linear_in]
    return [frozenset(i for i, n in enumerate(names) if n in words) for words in sets if set(words) <= set(names)]


def kernel_functions() -> tuple[str, ...]:
    """The runtime's functions that kernels of parts call."""
    kernels = (k for op in ROWS.values() for k in (op.kernel, op.ring) if k is not None)
    calls = [*(k.call for k in kernels), *(op.windows for op in ROWS.values() if op.windows)]
    return tuple(dict.fromkeys(call.partition("(")[0] for call in calls))


def modules(operators: Iterable[Operator]) -> tuple[str, ...]:
    """The Python modules that a program with these operators imports, because they define some of them."""
    named = {row(o).module for o in operators if not o.target.startswith("aten::")}
    return tuple(sorted(named - {""}))


# -- rows of others ---------------------------------------------------------------------------------------------------


def use_rows(source: str, given: Any) -> None:
    """Use the rows of a model's file, in place of those of the file before; `source` is its name.

    Raises PlanError where they are no rows, or one is for an operator that has a row.
    """
    rows = _checked(source, given)
    _of_file.clear()
    _of_file.update(rows)


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
    except Exception as error:  # whatever a package raises
        reason = f"{type(error).__name__}: {error}"
        raise PlanError(BadRows(None, f"the entry point `{entry.name}` of `{_package(entry)}`", reason)) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _checked(source: str, given: Any) -> dict[str, Op]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(op, Op) for op in given):
        raise PlanError(BadRows(None, source, "the rows are no list of `ssdsl.Op`"))
    known = [op.name for op in given if op.name in ROWS]
    if known:
        raise PlanError(BadRows(None, source, f"ssdsl has a row for `{known[0]}` itself"))
    return {op.name: op for op in given}
