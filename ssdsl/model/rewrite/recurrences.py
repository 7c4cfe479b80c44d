"""Recurrences: columns of states, of which each is linear in the one before, element by element.

    s[t] = coefficient[t] * s[t - 1] + offset[t]

`Recurrence.linear` follows a step from its state back to the state before, through sums and products, and says what the
coefficient and the offset are. A coefficient may be a number, 1 where states are only added to; None stands for zero.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.rewrite.all_steps import StepOperand
from ssdsl.model.rewrite.columns import Batched, Child, Column, StepColumns, Unlike

aten = torch.ops.aten
Tensor = torch.Tensor
Term = Batched | float | None
Linear = tuple[Term, Batched | None]  # coefficient and offset
CANDIDATES = 4  # values that are tried as the state after the last step
UNKNOWN = ""  # the state before the first step, until a step is found to read it


def states_after(columns: StepColumns, column: Column) -> Batched:
    """The states after each step, by a scan. Raises Unlike."""
    if column in columns.by_step or None in column:
        raise Unlike
    return Recurrence(columns, [UNKNOWN, *column[:-1]], column).scanned(column, before=False)


def states_before(columns: StepColumns, column: Column) -> Batched:
    """The states before each step, by a scan; the first one may be missing, which is zero. Raises Unlike."""
    if None in column[1:]:
        raise Unlike

    def scanned(last: str | None) -> Batched:
        return Recurrence(columns, [*column], (*column[1:], last)).scanned(column, before=True)

    return columns.first_of(scanned, [*_candidates(columns, column), None])


def _candidates(columns: StepColumns, column: Column) -> Iterator[str]:
    """Values that may be the state after the last step: results of the operator that makes the states, soon after."""
    last = column[-1] or ""
    call, at = columns.makers.get(last), columns.order[last]
    if call is None:
        return
    near = 2 * (at - columns.order[column[-2] or last]) + 16
    count = 0
    for other in columns.capture.calls[at + 1 : at + 1 + near]:
        output = other.outputs[0]
        alike = other.target is call.target and columns.tensors[output] == columns.tensors[last]
        if alike and count < CANDIDATES and columns.depends(output, last):
            count += 1
            yield output


class Recurrence:
    """The states of a loop: those `before` each step and those `after` it."""

    def __init__(self, columns: StepColumns, before: list[str | None], after: Column) -> None:
        self.columns, self.before, self.after = columns, before, after

    def scanned(self, column: Column, *, before: bool) -> Batched:
        """The scan of the states. Raises Unlike if they are no recurrence."""
        columns, real = self.columns, [v for v in self.after if v is not None]
        if not self._are_linked() or len({columns.tensors[v] for v in real}) > 1:
            raise Unlike
        coefficient, offset = self.linear(self.after)
        if coefficient is None or offset is None or self.before[0] == UNKNOWN:
            raise Unlike
        tensor, steps = columns.tensors[real[0]], len(self.after)
        first, shape = self.before[0], tensor.shape
        starts_zero = first is None or columns.is_zero(first)
        initial = [] if first is None or starts_zero else [Batched(first, same=True)]
        if any(columns.tensors[o.value].dtype != tensor.dtype or not _fits(columns, o, shape) for o in initial):
            raise Unlike
        decays = [coefficient] if isinstance(coefficient, Batched) else []
        given = [offset, *decays, *initial]
        dtype = getattr(torch, tensor.dtype)

        def scan(update: Tensor, *others: Tensor) -> Tensor:
            rest, rank = list(others), len(shape)
            update = _cast(StepOperand(update, steps, same=offset.same).aligned(rank), dtype)
            update = update if tuple(update.shape) == (steps, *shape) else update.expand(steps, *shape)
            if decays:
                decay = _cast(StepOperand(rest.pop(0), steps, same=decays[0].same).aligned(rank), dtype)
            else:
                decay = aten.full.default((), coefficient, dtype=dtype, device=torch.device("cpu"))
            return torch.ops.ssdsl.linear_scan.default(decay, update, rest[0] if rest else None, 0, before)  # type: ignore[no-any-return]

        found = columns.emit(scan, columns.makers[real[-1]], given)
        columns.check(found, (steps, *shape), tensor.dtype)
        columns.states[column] = self.after
        return Batched(found.value, begins_with_zero=before and starts_zero)

    def _are_linked(self) -> bool:
        """Whether each state is computed from the one before."""
        pairs = list(self._pairs(self.after))
        return bool(pairs) and all(self.columns.depends(value, state) for value, state in pairs)

    def _pairs(self, column: Column) -> Iterator[tuple[str, str]]:
        """Yields the values of a column, each with the state before its step: of the first step only if there is no
        other, because that step may do without a state."""
        pairs = [(v, s) for v, s in zip(column, self.before, strict=True) if v is not None and s]
        later = [(v, s) for v, s in zip(column[1:], self.before[1:], strict=True) if v is not None and s]
        yield from later or pairs

    def _is_state(self, column: Column) -> bool:
        """Whether a column has the states before each step; it then says what the first one is, if that was unknown."""
        start, first = self.before[0], column[0]
        rest = [(v, s) for v, s in zip(column[1:], self.before[1:], strict=True) if v is not None]
        if any(v != s for v, s in rest) or not (rest or (first is not None and first == start)):
            return False
        if start == UNKNOWN:
            self.before[0] = first
            return True
        are_zero = [v is None or self.columns.is_zero(v) for v in (start, first)]
        return start == first or all(are_zero)

    def linear(self, column: Column) -> Linear:
        """The coefficient and the offset of a column. Raises Unlike if it is not linear in the state before."""
        if self._is_state(column):
            return 1.0, None
        if not any(self.columns.depends(value, state) for value, state in self._pairs(column)):
            return None, self.columns.batched(column)
        if (addends := self.columns.late_addend(column)) is not None:
            return self._either(addends)
        call, args = self.columns.alike(column)
        if call.target.namespace != "aten" or call.kind not in OF_KIND:
            raise Unlike
        return OF_KIND[call.kind](self, call, *args)

    def _either(self, addends: Iterator[tuple[Column, Column]]) -> Linear:
        start = self.before[0]

        def summed(ways: tuple[Column, Column]) -> Linear:
            self.before[0] = start
            whole, late = ways
            return self._plus(self.linear(whole), self._of(Child(late, True)))

        return self.columns.first_of(summed, addends)

    def _of(self, item: Any) -> Linear:
        """The coefficient and the offset of an argument."""
        if not isinstance(item, Child):
            raise Unlike
        coefficient, offset = self.linear(item.column)
        starts = self.before[0]
        is_zero = offset is None and (starts is None or (starts != UNKNOWN and self.columns.is_zero(starts)))
        if item.starts_zero and not (is_zero or (coefficient is None and offset and offset.begins_with_zero)):
            raise Unlike
        return coefficient, offset

    # -- operators by their kinds ----------------------------------------------------------------------------------

    def _add(self, call: CapturedCall, x: Any, y: Any, *alpha: Any) -> Linear:
        if call.argument("alpha") != 1:
            raise Unlike
        return self._plus(self._of(x), self._of(y))

    def _sub(self, call: CapturedCall, x: Any, y: Any, *alpha: Any) -> Linear:
        if call.argument("alpha") != 1:
            raise Unlike
        return self._plus(self._of(x), self._times(self._of(y), -1.0))

    def _neg(self, call: CapturedCall, x: Any) -> Linear:
        return self._times(self._of(x), -1.0)

    def _mul(self, call: CapturedCall, x: Any, y: Any) -> Linear:
        if not isinstance(y, Child):
            return self._times(self._of(x), float(y))
        return self._product(self._of(x), self._of(y))

    def _div(self, call: CapturedCall, x: Any, y: Any, *mode: Any) -> Linear:
        if call.kwargs.get("rounding_mode") is not None or not isinstance(y, Child):
            raise Unlike
        by, (coefficient, offset) = self.columns.batched(y.column), self._of(x)
        if any(self.columns.depends(v, s) for v, s in self._pairs(y.column)):
            raise Unlike
        return self._divided(coefficient, by), self._divided(offset, by)  # type: ignore[return-value]

    def _addcmul(self, call: CapturedCall, x: Any, y: Any, z: Any) -> Linear:
        factor = float(call.kwargs.get("value", 1))
        return self._plus(self._of(x), self._times(self._product(self._of(y), self._of(z)), factor))

    def _lerp(self, call: CapturedCall, x: Any, end: Any, weight: Any) -> Linear:
        """x + weight * (end - x)"""
        start = self._of(x)
        difference = self._plus(self._of(end), self._times(start, -1.0))
        if isinstance(weight, Child):
            return self._plus(start, self._product(difference, self._of(weight)))
        return self._plus(start, self._times(difference, float(weight)))

    def _where(self, call: CapturedCall, mask: Any, x: Any, y: Any) -> Linear:
        """A state that some elements of a step leave as it is."""
        (none, condition), left, right = self._of(mask), self._of(x), self._of(y)
        if none is not None or condition is None:
            raise Unlike

        def either(x: Term, y: Term) -> Term:
            given = [0.0 if term is None else term for term in (x, y)]
            if given[0] == given[1] and not isinstance(given[0], Batched):
                return x
            return self._emit(torch.where, condition, *given)

        return either(left[0], right[0]), either(left[1], right[1])  # type: ignore[return-value]

    # -- sums and products of terms --------------------------------------------------------------------------------

    def _plus(self, x: Linear, y: Linear) -> Linear:
        return self._sum(x[0], y[0]), self._sum(x[1], y[1])  # type: ignore[return-value]

    def _times(self, x: Linear, factor: Term) -> Linear:
        return self._scaled(x[0], factor), self._scaled(x[1], factor)  # type: ignore[return-value]

    def _product(self, x: Linear, y: Linear) -> Linear:
        """The product of two columns, of which one does not depend on the state."""
        if x[0] is None:
            return self._times(y, x[1])
        if y[0] is None:
            return self._times(x, y[1])
        raise Unlike

    def _sum(self, x: Term, y: Term) -> Term:
        if x is None or y is None:
            return y if x is None else x
        return self._emit(torch.add, *((x, y) if isinstance(x, Batched) else (y, x)))

    def _scaled(self, x: Term, factor: Term) -> Term:
        if x is None or factor is None:
            return None
        if x == 1.0 or factor == 1.0:
            return factor if x == 1.0 else x
        return self._emit(torch.mul, *((x, factor) if isinstance(x, Batched) else (factor, x)))

    def _divided(self, x: Term, by: Batched) -> Term:
        if x is None or isinstance(x, Batched):
            return None if x is None else self._emit(torch.div, x, by)
        inverse = self._emit(torch.reciprocal, by)
        return inverse if x == 1.0 else self._emit(torch.mul, inverse, x)

    def _emit(self, function: Any, *terms: Term) -> Term:
        """A function of elements, of numbers and of columns that broadcast to each other."""
        if not any(isinstance(t, Batched) for t in terms):
            return float(function(*map(torch.tensor, terms)))
        columns, steps = self.columns, len(self.after)
        given = [t for t in terms if isinstance(t, Batched)]
        ranks = [len(columns.tensors[t.value].shape) - (not t.same) for t in given]

        def run(*tensors: Tensor) -> Tensor:
            operands = iter(
                StepOperand(x, steps, same=t.same).aligned(max(ranks)) for x, t in zip(tensors, given, strict=True)
            )
            filled = [next(operands) if isinstance(t, Batched) else t for t in terms]
            return function(*filled)  # type: ignore[no-any-return]

        made = columns.emit(run, columns.makers[next(v for v in self.after if v is not None)], given)
        return Batched(made.value, same=all(t.same for t in given))


OF_KIND: dict[str, Callable[..., Linear]] = {  # by the kind of the operator
    "add": Recurrence._add,
    "sub": Recurrence._sub,
    "neg": Recurrence._neg,
    "mul": Recurrence._mul,
    "div": Recurrence._div,
    "addcmul": Recurrence._addcmul,
    "lerp": Recurrence._lerp,
    "where": Recurrence._where,
}


def _fits(columns: StepColumns, operand: Batched, shape: tuple[int, ...]) -> bool:
    """Whether a tensor broadcasts to a shape."""
    own = columns.tensors[operand.value].shape
    return len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False))


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype:
        return x
    if torch.promote_types(x.dtype, dtype) != dtype:
        raise Unlike
    return aten._to_copy.default(x, dtype=dtype)  # type: ignore[no-any-return]
