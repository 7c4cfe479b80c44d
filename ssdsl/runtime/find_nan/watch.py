"""Watches a rank through a step: for each tensor that is not finite it keeps where that came from.

It is a dispatch mode, which sees each operator of torch with its operands and results, forward and backward. A result
that is not finite has the origin of the first operand that is not; without one, the operator made it. Origins belong to
memory, so that views of a tensor share its origin. Infinities may be meant, as in a mask that a softmax turns into
zeros: their origins are kept like others, and are told only if the loss or a gradient is reached by them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..ranks.world import World
from ..step.line_mode import CodeLine, LineMode
from ..step.provenance import Sites
from .not_finite import Kind, kind_in, kind_of, range_of
from .origins import Arrived, Findings, Given, Made, Origin, at_text

Operand = tuple[torch.Tensor, tuple[float, float] | None]  # with its least and largest number
UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_")
OVERWRITING = ("copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_")  # what they write, they do not read
SHOWN = 3  # operands whose ranges are told


class Watch(LineMode):  # type: ignore[no-untyped-call]
    """The watch of one rank over a step. `file` is its role's file; `doing` says what the rank does."""

    def __init__(self, world: World, sites: Sites, file: str, doing: Callable[[], str | None]) -> None:
        super().__init__(world, file)
        self.sites, self.doing = sites, doing
        self.sent: dict[str, int] = {}
        self._found: list[Origin] = []
        self._read_by: dict[int, str] = {}
        self._is_paused = False
        self._origins: dict[int, int] = {}  # numbers of origins by memory

    # -- operators -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_paused or func.namespace == "c10d":
            return func(*args, **kwargs)
        line = self.running()
        name = func._schema.name.rpartition("::")[2]
        operands = [*_tensors(args), *_tensors(kwargs.values())]
        written = _written(func, args, kwargs)
        read = [x for x in operands if name not in OVERWRITING or not any(x is w for w in written)]
        before = {id(x): range_of(x) for x in written if any(x is r for r in read)}
        result = func(*args, **kwargs)
        owned = {_memory(x) for x in operands} - {_memory(x) for x in written}
        results = [x for x in (*_tensors([result]), *written) if _memory(x) not in owned]  # no views
        if name in UNFILLED:
            for x in results:
                self._origins.pop(_memory(x), None)
            return result
        for x in results:
            if (kind := kind_of(x)) is not None:
                ranges = [(r, before[id(r)] if id(r) in before else range_of(r)) for r in read]
                self._origins[_memory(x)] = self._origin(
                    kind, ranges, line, name, _is_infinite((*args, *kwargs.values()))
                )
            elif x.numel() == x.untyped_storage().nbytes() // max(x.element_size(), 1):
                self._origins.pop(_memory(x), None)
        return result

    def _origin(self, kind: Kind, operands: Sequence[Operand], line: CodeLine | None, name: str, is_meant: bool) -> int:
        """The origin of a result, by its operands and their ranges."""
        nan, infinite = ([x for x, ends in operands if kind_in(ends) is found] for found in (Kind.NAN, Kind.INFINITY))
        if nan or (infinite and kind is Kind.INFINITY):
            return self._read(nan or infinite, line)
        because = self._read(infinite, line) if infinite else None
        told = self._told(line) or f"`{name}` in the engine ({self.doing() or 'between tasks'})"
        is_backward = torch._C._current_autograd_node() is not None
        at = self.at if line is None else dict(line.at)
        ends = ", ".join(f"[{ends[0]:.4g}, {ends[1]:.4g}]" for _, ends in operands[:SHOWN] if ends is not None)
        return self.add(Made(told, kind, is_backward, at, ends, because, is_meant))

    def _read(self, operands: Sequence[torch.Tensor], line: CodeLine | None) -> int:
        """The origin of one of the operands: of one that was made rather than given, such as a mask. Notes the operator
        that reads it."""
        numbers = [n for x in operands if (n := self._origins.get(_memory(x))) is not None]
        if not numbers:
            return self.add(Given("a value from before the step", kind_of(operands[0]) or Kind.NAN, False, False))
        found = min(numbers, key=lambda n: isinstance(self._found[n], Given))
        if line is not None and found not in self._read_by and (told := self._told(line)):
            self._read_by[found] = f"{told}{at_text(dict(line.at))}"
        return found

    # -- origins ---------------------------------------------------------------------------------------------------

    def add(self, origin: Origin) -> int:
        """The number of a new origin."""
        self._found.append(origin)
        return len(self._found) - 1

    def findings(self, loss: int | None, gradients: dict[str, int]) -> Findings:
        """What was found, with the origins of the loss and of gradients."""
        return Findings(tuple(self._found), loss, gradients, self.sent, self._read_by)

    def mark(self, x: torch.Tensor, given: Given) -> None:
        """Notes that the step was given a tensor; a second one of the same memory does not count."""
        if _memory(x) not in self._origins:
            self._origins[_memory(x)] = self.add(given)

    def origin_of(self, x: torch.Tensor) -> int | None:
        """The origin of a tensor that is not finite; None if it is finite."""
        with self.paused():
            return self._read([x], None) if kind_of(x) is not None else None

    def leaves(self, key: str, x: torch.Tensor) -> None:
        """Notes what is sent to other ranks."""
        if (number := self.origin_of(x)) is not None:
            self.sent.setdefault(key, number)

    def arrives(self, key: str, x: torch.Tensor, by: str) -> None:
        """Notes what has come from other ranks, or is the sum of what this rank and others have sent."""
        with self.paused():
            kind = kind_of(x)
        if kind is None:
            self._origins.pop(_memory(x), None)
        elif key in self.sent:
            self._origins[_memory(x)] = self.sent[key]
        else:
            self._origins[_memory(x)] = self.add(Arrived(key, by, kind))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which no operator is looked at."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def _told(self, line: CodeLine | None) -> str | None:
        return None if line is None else self.sites.operator(line.number, line.layer)


def _is_infinite(arguments: Iterable[Any]) -> bool:
    """Whether one of these numbers is infinite, or too large for a float: as what fills a mask."""
    return any(isinstance(number, float) and math.isinf(number) for number in arguments)


def _memory(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operator writes to."""
    formal = func._schema.arguments
    given = [*zip(formal, args, strict=False), *((a, kwargs[a.name]) for a in formal if a.name in kwargs)]
    return [*_tensors(value for argument, value in given if argument.alias_info and argument.alias_info.is_write)]
