"""Whether a dimension can be cut into these parts, after the cuts that it has."""

from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.model.graph import Operator
from ssdsl.plan.context import Context
from ssdsl.plan.errors.split import BadSizes, DoesNotDivide
from ssdsl.plan.eval.origin import Origin
from ssdsl.text.diagnostic import PlanError


@dataclass(frozen=True, slots=True)
class Parts:
    """What one `into` says. `total` is the sum of the sizes, if sizes were given; `sizes` only if they differ."""

    cut: nodes.Cut
    count: int
    sizes: tuple[int, ...] | None
    total: int | None
    origin: Origin | None


def divide(ctx: Context, s: nodes.Split, found: list[tuple[Operator, int]], parts: Parts) -> None:
    """Raises PlanError if some of these dimensions, given by operator and number, do not divide."""
    bad: dict[int, list[tuple[Operator, int]]] = {}
    for op, at in found:
        for size in remaining_sizes(ctx, op, at):
            if size % parts.count if parts.total is None else size != parts.total:
                bad.setdefault(size, []).append((op, at))
    if not bad:
        return
    size, where = next(iter(bad.items()))
    op, at = where[0]
    name = op.dims[at].name
    if parts.total is not None:
        raise PlanError(BadSizes(parts.cut.span, parts.total, name, size, _where(where, size, name)))
    count, origin = parts.count, parts.origin
    label = f"{parts.cut.name.text} = {count}{f', {origin.text}' if origin else ''}"
    raise PlanError(DoesNotDivide(s.dim.span, name, count, label, _where(where, size, name), _choices(size, origin)))


def remaining_sizes(ctx: Context, op: Operator, at: int) -> list[int]:
    """The different sizes of the parts of a dimension, as it is cut so far."""
    sizes = [op.dims[at].size]
    for index in ctx.indices.get(op.name, ()):
        if index.dim == at:
            sizes = list(dict.fromkeys(index.sizes or [size // index.count for size in sizes]))
    return sizes


def _where(found: list[tuple[Operator, int]], size: int, name: str) -> str:
    places = list(dict.fromkeys(op.path or op.name for op, _ in found))
    more = f" and {len(places) - 1} more have" if len(places) > 1 else " has"
    cut = " left to cut" if found[0][0].dims[found[0][1]].size != size else ""
    return f"`{places[0]}`{more} {name} = {size}{cut}"


def _choices(size: int, origin: Origin | None) -> str:
    divisors = [n for n in range(min(size, 4096), 1, -1) if size % n == 0][:6]
    if not divisors:
        return "it cannot be cut further"
    numbers = ", ".join(map(str, divisors[:-1])) + (" or " if len(divisors) > 1 else "") + str(divisors[-1])
    return f"choose a divisor of {size}: {f'{origin.param} = ' if origin else ''}{numbers}"
