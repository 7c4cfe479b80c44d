"""Columns: the values that the steps of a loop make in one place, and the tensor of all of them.

`StepColumns.batched` finds or makes the tensor of a column, with the axis of steps in front. A step at either end may
lack a value (None): a first step often computes nothing with the state, because it is zero, and after the last step no
state is read any more. Positions for these are computed too; they are not read, or zero.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.ops.registry import is_random
from ssdsl.model.rewrite.all_steps import NoRule, StepOperand, is_zero, rule_of
from ssdsl.model.rewrite.calls import inline, temporary, with_arguments
from ssdsl.model.rewrite.places import Read, read_by
from ssdsl.record import Record, replace

aten = torch.ops.aten
Tensor = torch.Tensor
Column = tuple[str | None, ...]
ZEROS = ("zeros", "zeros_like")


class Unlike(Exception):
    """The values of a column are not computed alike."""


class Batched(Record):
    """The tensor of a column; with the `same` value in all steps it has no axis of steps. `begins_with_zero`: it is
    known that its first position is zero."""

    value: str
    same: bool = False
    begins_with_zero: bool = False


class Child(Record):
    """The column of an operand. `starts_zero`: the first step has the number 0, or nothing, in place of a tensor."""

    column: Column
    starts_zero: bool = False


Way = Callable[["StepColumns", Column], Batched]
T = TypeVar("T")
R = TypeVar("R")


class StepColumns:
    """The columns of a capture, and the calls that compute them for all steps.

    `by_step`: states after each step that are not scanned, because they follow from those before each step. `after` and
    `before` scan a column of such states.
    """

    def __init__(self, capture: Capture, by_step: set[Column], after: Way, before: Way) -> None:
        self.scans = after, before
        self.capture, self.by_step = replace(capture, tensors=dict(capture.tensors)), by_step
        self.tensors = self.capture.tensors
        self.makers = capture.makers()
        self.order = dict.fromkeys(capture.origins, -1)
        self.order.update((o, n) for n, call in enumerate(capture.calls) for o in call.outputs)
        self.emitted: list[tuple[int, CapturedCall]] = []  # each with the number of the call that it stands in front of
        self.known: dict[Column, Batched] = {}
        self.failed: set[Column] = set()
        self.rows: dict[tuple[str, Read, int], Batched] = {}  # parts of tensors, with the steps in front
        self.states: dict[Column, Column] = {}  # by a scanned column, the states after each step
        self.children: dict[Column, set[Column]] = {}
        self.open: list[Column] = []
        self.circles = 0

    # -- calls for all steps -------------------------------------------------------------------------------------------

    def emit(
        self, rule: Callable[..., Tensor], like: CapturedCall, operands: Sequence[Batched], output: str = ""
    ) -> Batched:
        """Adds a rule's calls, as early as its operands are there, at the place of a step's call in the model."""
        call = like
        if not output:
            output = temporary(f"{like.name}_steps", self.capture, self.tensors[like.outputs[0]])
            call = replace(like, name=output, outputs=(output,))
        place = max((self.order[o.value] for o in operands), default=-1) + 1
        try:
            calls = inline(rule, call, self.capture, [Ref(o.value) for o in operands])
        except (RuntimeError, TypeError, ValueError, IndexError) as error:  # torch cannot call it for all steps
            raise Unlike from error
        self.emitted += [(place, made) for made in calls]
        self.order[output] = place - 1
        return Batched(output)

    def mark(self) -> tuple[Any, ...]:
        """What `reset` needs to take back all that is emitted from now on."""
        return len(self.emitted), *(dict(d) for d in (self.known, self.rows, self.order, self.states))

    def reset(self, mark: tuple[Any, ...]) -> None:
        """Takes back what was emitted since."""
        count, self.known, self.rows, self.order, self.states = mark
        del self.emitted[count:]

    # -- columns -------------------------------------------------------------------------------------------------------

    def batched(self, column: Column) -> Batched:
        """The tensor of a column. Raises Unlike if its steps are not alike."""
        if self.open:
            self.children.setdefault(self.open[-1], set()).add(column)
        if column in self.open:
            self.circles += 1
            raise Unlike  # a column that needs itself is none
        if column in self.failed:
            raise Unlike
        if column not in self.known:
            circles = self.circles
            self.open.append(column)
            try:
                self.known[column] = self._batched(column)
            except (Unlike, NoRule):
                if circles == self.circles:  # else it may succeed elsewhere
                    self.failed.add(column)
                raise Unlike from None
            finally:
                self.open.pop()
        return self.known[column]

    def _batched(self, column: Column) -> Batched:
        real = [v for v in column if v is not None]
        if len(set(real)) == 1:
            return Batched(real[0], same=True)
        if (found := self._positions(column)) is not None:
            return found
        after, before = self.scans
        ways = (after, StepColumns.operation, before, StepColumns.first_apart)
        return self.first_of(lambda way: way(self, column), ways)

    def first_of(self, run: Callable[[T], R], ways: Iterable[T]) -> R:
        """The first result of `run` for one of several ways; what failed ones emitted is taken back. Raises Unlike."""
        for way in ways:
            mark = self.mark()
            try:
                return run(way)
            except (Unlike, NoRule):
                self.reset(mark)
        raise Unlike

    def scans_of(self, column: Column) -> set[Column]:
        """The states after each step of the recurrences that a column is computed from."""
        seen, ahead = {column}, [column]
        while ahead:
            more = self.children.get(ahead.pop(), set()) - seen
            seen |= more
            ahead += more
        return {self.states[c] for c in seen if c in self.states}

    def twice(self) -> set[Column]:
        """The states that are scanned twice: those after each step, and those before it."""
        return {after for column, after in self.states.items() if column != after and after in self.states}

    def depends(self, value: str, on: str) -> bool:
        """Whether a value is computed from another, or is it."""
        first, seen, ahead = self.order[on], {value}, [value]
        while ahead:
            name = ahead.pop()
            if name == on:
                return True
            if self.order[name] > first and (call := self.makers.get(name)) is not None:
                more = [r for r in call.refs() if r not in seen]
                seen.update(more)
                ahead += more
        return False

    def is_zero(self, value: str) -> bool:
        """Whether a value is a constant of zeros."""
        call = self.makers.get(value)
        if call is None or call.target.namespace != "aten":
            return False
        if call.kind in ("expand", "reshape", "permute", "transpose"):
            return self.is_zero(call.args[0].value)
        if call.kind == "mul":
            return not isinstance(call.args[1], Ref) and call.args[1] == 0  # as Python's 0 * x is captured
        return call.kind in ZEROS or (call.kind in ("full", "full_like") and call.argument("fill_value") == 0)

    # -- positions of a tensor -----------------------------------------------------------------------------------------

    def _positions(self, column: Column) -> Batched | None:
        """The tensor of which the steps read consecutive positions; None if they do not."""
        reads = [(n, read_by(self.makers.get(v), v, self.tensors)) for n, v in enumerate(column) if v is not None]
        first = reads[0][1]
        if first is None:
            return None
        (source, place), shape = first, self.tensors[first[0]].shape
        stride = self._stride(reads)
        start, end = place.start - reads[0][0] * stride, place.start + (len(column) - reads[0][0]) * stride
        wanted = [(n, (source, replace(place, start=start + n * stride))) for n, _ in reads]
        outer = start - start % stride if stride > place.size else start  # where the first run of `stride` begins
        end += outer - start
        if reads != wanted or not 0 <= outer < end <= shape[place.dim] or start - outer + place.size > stride:
            return None
        key = (source, replace(place, start=start), end)
        if key not in self.rows:
            found = self._rows(column, source, place, outer, start - outer, stride)
            self.rows[key] = found
        return self.rows[key]

    def _stride(self, reads: list[tuple[int, tuple[str, Read] | None]]) -> int:
        """The positions from one step's part to the next one's; the size of a part if only one step reads any."""
        (number, first), *others = reads
        assert first is not None
        later = next(((n, r) for n, r in others if r is not None), None)
        if later is None:
            return first[1].size
        return max(1, (later[1][1].start - first[1].start) // (later[0] - number))

    def _rows(self, column: Column, source: str, place: Read, start: int, within: int, stride: int) -> Batched:
        """The parts of a tensor that the steps read, with the steps in front: each has `place.size` positions of a run
        of `stride`, from the one `within` the run."""
        dim, steps = place.dim, len(column)
        is_whole = steps * stride == self.tensors[source].shape[dim]
        if dim == 0 and is_whole and place.selected and stride == 1:
            return Batched(source)

        def rows(x: Tensor) -> Tensor:
            if not is_whole:
                x = aten.slice.Tensor(x, dim, start, start + steps * stride)
            if stride > 1 or not place.selected:
                x = x.reshape(*x.shape[:dim], steps, stride, *x.shape[dim + 1 :])
                if place.selected:
                    x = x.select(dim + 1, within)
                elif place.size < stride:
                    x = aten.slice.Tensor(x, dim + 1, within, within + place.size)
            return x.permute([dim, *(d for d in range(x.dim()) if d != dim)]) if dim else x

        return self.emit(rows, self.makers[next(filter(None, column))], [Batched(source)])

    # -- operators -----------------------------------------------------------------------------------------------------

    def operation(self, column: Column) -> Batched:
        """The call of the operator that all steps call. Raises Unlike or NoRule if there is none."""
        if (addends := self.late_addend(column)) is not None:
            return self._either(addends)
        call, args = self.alike(column)
        rule, shape = rule_of(call), self._shape(column)
        columns = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Child)]
        operands = [self._operand(child) for child in columns]
        if all(o.same for o in operands):
            if is_random(call):
                raise Unlike
            return Batched(call.outputs[0], same=True)

        def run(*tensors: Tensor) -> Tensor:
            given = iter(StepOperand(t, len(column), same=o.same) for t, o in zip(tensors, operands, strict=True))
            filled = tree_map(lambda leaf: next(given) if isinstance(leaf, Child) else leaf, args)
            return rule(call, filled, shape, len(column))

        found = self.emit(run, call, operands)
        self.check(found, (len(column), *shape), self.tensors[call.outputs[0]].dtype)
        return replace(found, begins_with_zero=is_zero(call, [o.begins_with_zero for o in operands]))

    def _operand(self, child: Child) -> Batched:
        found = self.batched(child.column)
        if child.starts_zero and not found.begins_with_zero:
            raise Unlike
        return found

    def check(self, found: Batched, shape: tuple[int, ...], dtype: str) -> None:
        """Raises Unlike if the tensor of all steps has not the form of the steps' values."""
        made = self.tensors[found.value]
        if (made.shape, made.dtype) != (shape, dtype):
            raise Unlike

    def _shape(self, column: Column) -> tuple[int, ...]:
        """The shape of all values of a column. Raises Unlike if they, or their dtypes, differ."""
        tensors = [self.tensors[v] for v in column if v is not None]
        if len({(t.shape, t.dtype) for t in tensors}) > 1:
            raise Unlike
        return tensors[0].shape

    def _either(self, addends: Iterator[tuple[Column, Column]]) -> Batched:
        """A sum of two columns, of which one has nothing, that is zero, in the first step."""

        def summed(ways: tuple[Column, Column]) -> Batched:
            whole, late = ways
            return self._sum(whole, [self._operand(Child(whole)), self._operand(Child(late, True))])

        return self.first_of(summed, addends)

    def _sum(self, whole: Column, given: list[Batched]) -> Batched:
        shape, steps = self._shape(whole), len(whole)

        def add(*tensors: Tensor) -> Tensor:
            left, right = (StepOperand(t, steps, same=o.same) for t, o in zip(tensors, given, strict=True))
            return left.aligned(len(shape)) + right.aligned(len(shape))

        found = self.emit(add, self.makers[whole[-1] or whole[0] or ""], given)
        self.check(found, (steps, *shape), self.tensors[whole[0] or ""].dtype)
        return found

    def first_apart(self, column: Column) -> Batched:
        """The tensor of a column whose first step is unlike the others, such as a state that begins with an input."""
        first, rest = column[0], (None, *column[1:])
        if first is None or len({v for v in rest if v is not None}) < 2:
            raise Unlike
        steps, shape = len(column), self._shape(column)
        given = [self._operand(Child(rest)), Batched(first, same=True)]

        def choose(x: Tensor, first: Tensor) -> Tensor:
            number = aten.arange.default(steps, device=torch.device("cpu"))
            return torch.where((number == 0).reshape(steps, *[1] * len(shape)), first, x)

        found = self.emit(choose, self.makers[column[1] or ""], given)
        self.check(found, (steps, *shape), self.tensors[first].dtype)
        return found

    def late_addend(self, column: Column) -> Iterator[tuple[Column, Column]] | None:
        """Where all steps but the first add something: ways to see the sum as two columns, of which the second one is
        zero in the first step. None if the first step is like the others."""
        first, second = column[0], next((v for v in column[1:] if v is not None), None)
        if first is None or second is None:
            return None
        call, other = self.makers.get(first), self.makers.get(second)
        is_sum = other is not None and other.target is aten.add.Tensor and other.argument("alpha") == 1
        if not is_sum or (call is not None and call.target is aten.add.Tensor and len(call.refs()) == 2):
            return None
        _, args = self.alike((None, *column[1:]))
        if not all(isinstance(a, Child) for a in args[:2]):
            return None
        left, right = (a.column[1:] for a in args[:2])
        return iter([((first, *right), (None, *left)), ((first, *left), (None, *right))])

    def alike(self, column: Column) -> tuple[CapturedCall, list[Any]]:
        """The call of the first step, and its arguments, with a Child in place of each tensor. Raises Unlike if another
        step calls another operator, or with other arguments that are no tensors."""
        calls = [None if v is None else self.makers.get(v) for v in column]
        if any((v is None) != (c is None) for v, c in zip(column, calls, strict=True)):
            raise Unlike  # an input, or a weight
        real = [call for call in calls if call is not None]
        first = real[0]
        if any(
            c.target is not first.target or c.kwargs != first.kwargs or c.orders or len(c.outputs) > 1 for c in real
        ):
            raise Unlike
        rows = [None if c is None else with_arguments(c).args for c in calls]
        count = len(next(filter(None, rows), ()))
        args = [_merged([None if row is None else (row[at],) for row in rows]) for at in range(count)]
        return first, tree_map(self._without_product, args)

    def _without_product(self, item: Any) -> Any:
        """An operand; without its first value if that is a product by the number 0, where the others are another."""
        if not isinstance(item, Child) or item.column[0] is None or len(set(item.column)) == 1:
            return item
        call = self.makers.get(item.column[0])
        is_product = call is not None and call.kind == "mul" and self.is_zero(item.column[0])
        return Child((None, *item.column[1:]), True) if is_product else item


def _merged(items: Sequence[tuple[Any] | None]) -> Any:
    """One argument of all steps; None for a step without a call."""
    real = [item[0] for item in items if item is not None]
    first, rest = real[0], real[1:]
    if all(isinstance(item, Ref) for item in real):
        return Child(tuple(None if item is None else item[0].value for item in items))
    if items[0] is not None and first == 0 and not isinstance(first, Ref) and all(isinstance(r, Ref) for r in rest):
        return Child((None, *(None if item is None else item[0].value for item in items[1:])), True)
    if all(isinstance(item, (tuple, list)) and len(item) == len(first) for item in real):
        parts = range(len(first))
        return [_merged([None if item is None else (item[0][at],) for item in items]) for at in parts]
    if any(isinstance(item, (Ref, tuple, list)) or item != first or type(item) is not type(first) for item in real):
        raise Unlike
    return first
