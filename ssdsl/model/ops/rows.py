"""ssdsl's own rows, and facts that follow from a row for an operator."""

from collections.abc import Iterable, Mapping

from ssdsl.model.graph import Operator
from ssdsl.model.ops.families import (
    attention_and_softmax,
    contraction,
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
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import parameters

FAMILIES = (
    *(elementwise, contraction, attention_and_softmax, norm, table, reduce, scan, image, move, loss, random),
    *(experts, linalg),
)

ROWS: Mapping[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}


def is_linear(operator: Operator, partial: Iterable[int]) -> bool:
    """Whether the sum of an operator's results on parts is its result on the sum of these operands' parts.

    `partial` are the numbers of the operands that are partial sums; the others are the same for all parts.
    """
    return set(partial) in _together(operator)


def linear_with(operator: Operator, partial: Iterable[int]) -> frozenset[int]:
    """The operands that have to be partial sums if these are: all those of a sum; none if it is not linear in these.

    An operand that is the same for all parts becomes a partial sum when one part keeps it and the others take zeros.
    """
    fitting = [t for t in _together(operator) if t.issuperset(partial)]
    return min(fitting, key=len, default=frozenset())


def _together(operator: Operator) -> list[frozenset[int]]:
    """The sets of operands in which an operator is linear together; none if it rounds."""
    options = dict(operator.kwargs)
    rounds = options.get("rounding_mode") is not None or any(w in str(options.get("dtype")) for w in ("int", "bool"))
    names = parameters(operator)
    sets = [] if rounds else [t.split() for t in operator.row.linear_in]
    return [frozenset(i for i, n in enumerate(names) if n in words) for words in sets if set(words) <= set(names)]


def modules(operators: Iterable[Operator]) -> tuple[str, ...]:
    """The Python modules that a program with these operators imports, because they define some of them."""
    named = {o.row.module for o in operators if not o.target.startswith("aten::")}
    return tuple(sorted(named - {""}))
