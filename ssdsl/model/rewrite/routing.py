"""Leaves out the sort of a mixture's rows by expert: `routed_mm` takes unsorted rows that name their expert.

A mixture of experts sorts its tokens by expert, so that each expert has a run of rows, and afterwards undoes the sort.
The sort needs all rows at once, so no plan could split them. But the operators in between work on each row by itself:
in another order they give the same rows. So the sort can be left out, if each row takes the name of its expert along: a
product of runs of rows becomes `routed_mm`, a product of rows that name their weights.

    order = experts.argsort()                      ->
    y = grouped_mm(x[order // k], w, ends)         ->   y = routed_mm(x.repeat_interleave(k), w, experts)
    z = act(y)[order.argsort()]                    ->   z = act(y)

The table of operators tells whether an operator works on each row by itself.
"""

from dataclasses import dataclass, field

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.dims.analyse import signature_of
from ssdsl.model.dims.signature import Axis
from ssdsl.model.graph import Ref
from ssdsl.model.ops.registry import row
from ssdsl.model.rewrite.calls import inline, rename, rename_results, retarget, without_unread
from ssdsl.record import replace

SORTS = {"aten::sort": 1, "aten::sort.stable": 1, "aten::argsort": 0, "aten::argsort.stable": 0}  # number of the order
PRODUCTS = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
COUNTS = ("histc", "bincount")
CASTS = ("_to_copy", "to", "clone")


def leave_unsorted(capture: Capture) -> Capture:
    """The same computation without the sorts whose order is undone before anything depends on it."""
    for call in capture.calls:
        if _sorts(call) and len(capture.tensors[call.refs()[0]].shape) == 1:
            region = _Region(capture, call)
            if region.walk():
                capture = region.result()
    return capture


class _Leaves(Exception):
    """A call depends on the order of the sorted rows, so the sort has to stay."""


@dataclass
class _Region:
    """The calls between a sort and its inverse, rewritten for rows in the order before the sort."""

    capture: Capture
    sort: CapturedCall
    order: set[str] = field(default_factory=set)  # values that are the order of the rows
    owners: dict[str, int] = field(default_factory=dict)  # order // k, with k
    inverse: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)  # a value with sorted rows -> the same with unsorted rows
    same: dict[str, str] = field(default_factory=dict)  # a value -> an equal one that takes its place
    calls: list[CapturedCall] = field(default_factory=list)
    made: int = 0  # products of experts

    def __post_init__(self) -> None:
        self.ids = self.sort.refs()[0]
        self.rows = self.capture.tensors[self.ids].shape[0]
        self.capture = replace(self.capture, tensors=dict(self.capture.tensors))
        self.tensors = self.capture.tensors
        self.makers = self.capture.makers()

    def walk(self) -> bool:
        """Rewrites all calls; returns whether the sort can be left out."""
        try:
            for call in self.capture.calls:
                self.calls += [call] if call is not self.sort and not self._touches(call) else self._inside(call)
        except _Leaves:
            return False
        left = self.capture.results()
        return self.made > 0 and not left & (self.order | self.inverse | {*self.owners} | {*self.moved})

    def result(self) -> Capture:
        """The capture without the sort, and without calls that only served it."""
        found = replace(self.capture, calls=self.calls)
        rename_results(found, self.same)
        return without_unread(found)

    def _touches(self, call: CapturedCall) -> bool:
        known = {*self.order, *self.inverse, *self.owners, *self.moved, *self.same}
        return not known.isdisjoint(call.refs())

    def _inside(self, call: CapturedCall) -> list[CapturedCall]:
        """The calls in place of one that reads a value of the region, or is the sort. Raises _Leaves."""
        name = call.target.name()
        if call is self.sort:
            return self._sorted(call)
        reads = call.refs()
        if self._undoes(call):
            self.inverse.update(call.outputs[-1:])
            return []
        if name in ("aten::empty_like", "aten::zeros_like") and reads[0] in self.order:
            return [rename(call, {reads[0]: self.ids})]
        if (count := self._divided(call)) is not None:
            self.owners[call.outputs[0]] = count
            return []
        if call.kind in ("index", "index_select") and (found := self._picked(call)) is not None:
            return found
        if name == "aten::index_add" and reads[1] in self.owners:
            return self._added(call)
        if name in PRODUCTS and reads[0] in self.moved and self._are_ends(reads[2:3]):
            return self._product(call)
        return self._each(call)

    def _sorted(self, call: CapturedCall) -> list[CapturedCall]:
        order = SORTS[call.target.name()]
        self.order.add(call.outputs[order])
        if order:
            self.moved[call.outputs[0]] = self.ids
        return [call]

    def _undoes(self, call: CapturedCall) -> bool:
        """Whether a call gives the inverse of the order: sorts it, or writes 0, 1, ... to the places it names."""
        reads = call.refs()
        if _sorts(call):
            return reads[0] in self.order
        writes = call.kind == "scatter" or (call.kind == "index_put" and not call.argument("accumulate"))
        if not writes or len(reads) != 3 or self.tensors[reads[0]].shape != (self.rows,):
            return False
        return reads[1] in self.order and self._counts_up(reads[2])

    def _counts_up(self, value: str) -> bool:
        maker = self.makers.get(value)
        return maker is not None and maker.target.name() == "aten::arange" and maker.args == (self.rows,)

    def _divided(self, call: CapturedCall) -> int | None:
        """The k of `order // k`, if that is the call."""
        floors = call.kind == "floor_divide" or (call.kind == "div" and call.kwargs.get("rounding_mode") == "floor")
        if not floors or call.refs() != (next(iter(self.order)),) or not isinstance(call.args[1], int):
            return None
        return call.args[1]

    def _picked(self, call: CapturedCall) -> list[CapturedCall] | None:
        """The calls in place of an index: none for rows in the sorted order, nor for sorted rows in the inverse order;
        a repetition for rows of owners. None, if the index is another one.
        """
        places: tuple[object, ...] = call.args[1] if call.kind == "index" else (call.args[2],)
        if len(places) != 1 or (call.kind == "index_select" and call.args[1] != 0) or not isinstance(places[0], Ref):
            return None
        source, at, out = call.args[0].value, places[0].value, call.outputs[0]
        rows = self.tensors[source].shape[0]
        if source in self.moved:
            if at not in self.inverse:
                raise _Leaves
            self.same[out] = self.moved[source]
            return []
        source = self.same.get(source, source)
        if at in self.order and rows == self.rows:
            self.moved[out] = source
            return []
        if at in self.owners and rows * self.owners[at] == self.rows:
            self.moved[out] = out
            return self._repeated(call, source, self.owners[at])
        return None

    def _repeated(self, call: CapturedCall, source: str, count: int) -> list[CapturedCall]:
        """Calls that repeat each row `count` times, like `repeat_interleave`."""

        def rule(x: torch.Tensor) -> torch.Tensor:
            one = x.reshape(len(x), 1, *x.shape[1:])
            many = one.expand(len(x), count, *x.shape[1:])
            return many.reshape(len(x) * count, *x.shape[1:])

        return inline(rule, call, self.capture, (Ref(source),))

    def _added(self, call: CapturedCall) -> list[CapturedCall]:
        """Calls in place of adding sorted rows to their owners: sums of each owner's rows, which lie together now."""
        target, at, rows = call.refs()
        count, shape = self.owners[at], self.tensors[target].shape
        if rows not in self.moved or call.args[1] != 0 or call.kwargs or shape[0] * count != self.rows:
            raise _Leaves

        def rule(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            groups = given.reshape(x.shape[0], count, *given.shape[1:])
            total = groups.sum(1)
            return x + total

        return inline(rule, call, self.capture, (Ref(self.same.get(target, target)), Ref(self.moved[rows])))

    def _are_ends(self, values: tuple[str, ...]) -> bool:
        """Whether a value has the ends of the experts' runs: the running sum of the counts of their rows."""
        running = self.makers.get(self._before_casts(values[0])) if values else None
        if running is None or running.kind != "cumsum":
            return False
        counts = self.makers.get(self._before_casts(running.refs()[0]))
        if counts is None or counts.kind not in COUNTS:
            return False
        if counts.kind == "histc":
            bins, low, high = (counts.argument(n) for n in ("bins", "min", "max"))
            if (low, high) != (0, bins - 1):
                return False
        counted = self._before_casts(counts.refs()[0])
        return counted == self.ids or self.moved.get(counted) == self.ids

    def _before_casts(self, value: str) -> str:
        """The value that was cast to this one, or the value itself."""
        while (maker := self.makers.get(value)) is not None and maker.kind in CASTS:
            value = maker.refs()[0]
        return value

    def _product(self, call: CapturedCall) -> list[CapturedCall]:
        rows, weights = call.refs()[:2]
        if weights in self.moved or len(call.refs()) > 3 or len(self.tensors[weights].shape) != 3:
            raise _Leaves
        self.made += 1
        self.moved[call.outputs[0]] = call.outputs[0]
        args = (Ref(self.moved[rows]), Ref(self.same.get(weights, weights)), Ref(self.ids))
        return [retarget(call, torch.ops.ssdsl.routed_mm.default, *args)]

    def _each(self, call: CapturedCall) -> list[CapturedCall]:
        """The call itself, on unsorted rows: allowed if it works on each row by itself, or sums over the rows."""
        if {*self.order, *self.inverse, *self.owners} & set(call.refs()):
            raise _Leaves
        if (moving := [r for r in call.refs() if r in self.moved]) and self._keeps_rows(call):
            self.moved.update({o: o for o in call.outputs})
        elif moving and not self._sums_rows(call):
            raise _Leaves
        return [rename(call, {**self.same, **self.moved})]

    def _keeps_rows(self, call: CapturedCall) -> bool:
        if call.kind == "reshape":
            return self.tensors[call.outputs[0]].shape[:1] == (self.rows,)
        letters = self._letters(call)
        if letters is None:
            return False
        row, given, made = letters
        return all(_first(a) == row and not _occurs(row, a[1:]) for a in made) and given

    def _sums_rows(self, call: CapturedCall) -> bool:
        """Whether a call adds up the rows, in any order."""
        letters = None if self._counts_rows(call) else self._letters(call)
        return letters is not None and letters[1] and not any(_occurs(letters[0], a) for a in letters[2])

    def _counts_rows(self, call: CapturedCall) -> bool:
        """Whether a call picks rows by their numbers: its parts are told where among the rows they begin."""
        kernel = row(call).kernel
        if kernel is None or not kernel.is_placed:
            return False
        parameter, axis = kernel.axis
        number, given = call.argument(axis) if isinstance(axis, str) else axis, call.argument(parameter)
        if not isinstance(given, Ref) or given.value not in self.moved:
            return False
        rank = len(self.tensors[given.value].shape)
        return number is None or any(n % rank == 0 for n in (number if isinstance(number, tuple) else (number,)))

    def _letters(self, call: CapturedCall) -> tuple[str, bool, list[tuple[Axis, ...]]] | None:
        """The letter of the rows, whether no other axis of an operand has it, and the axes of the results."""
        found = signature_of(call, self.capture)
        if found is None:
            return None
        reads = call.refs()
        given = [p.fit(len(self.tensors[r].shape)) for p, r in zip(found.inputs, reads, strict=False)]
        rows = {_first(a) for a, r in zip(given, reads, strict=True) if r in self.moved}
        row = next(iter(rows)) if len(rows) == 1 else ""
        letter = found.letters().get(row) or next((x for a in given for y in a for x in y if x.name == row), None)
        if letter is None or letter.fixed or letter.combined:
            return None
        alone = all(not _occurs(row, a[1:] if r in self.moved else a) for a, r in zip(given, reads, strict=True))
        outputs = [o for o in call.outputs if o in self.tensors]
        made = [p.fit(len(self.tensors[o].shape)) for p, o in zip(found.outputs, outputs, strict=True)]
        return row, alone, made


def _sorts(call: CapturedCall) -> bool:
    """Whether a call sorts in ascending order."""
    return call.target.name() in SORTS and not call.argument("descending")


def _first(axes: tuple[Axis, ...]) -> str:
    """The letter of the first axis, if it has just one; else ""."""
    return axes[0][0].name if axes and len(axes[0]) == 1 else ""


def _occurs(letter: str, axes: tuple[Axis, ...]) -> bool:
    return any(x.name == letter for axis in axes for x in axis)
