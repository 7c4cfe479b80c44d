"""The weights of this process, in units: weights whose gradients are reduced, and whose state is cut, together.

A unit lays its weights end to end. Where its state is cut over a group (ZeRO; Rajbhandari et al. 2020) each rank owns
an equal part of that row: of the optimizer's state (ZeRO-1), of the gradients too (ZeRO-2), or of the weights too
(ZeRO-3), which are then gathered where a module uses them and dropped behind it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from .recompute import is_recomputing
from .world import Group


@dataclass
class Slot:
    """A weight in its unit: the elements from `start` of the unit's row."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Tie:
    """The ranks that sum the gradients of a weight with several homes. Of equal copies in one home, one contributes."""

    group: Group
    contributes: bool


class Unit:
    """Weights of one kind. `cut`: what is cut over the group `over` ("", "optimizer", "grads" or "weights")."""

    def __init__(
        self,
        values: dict[str, torch.Tensor],
        partial: Group | None,
        rest: Group | None,
        over: Group | None,
        cut: str,
        tied: "Tie | None",
        scatter: bool,
    ) -> None:
        self.partial, self.rest, self.over, self.cut, self.tied, self.scatter = partial, rest, over, cut, tied, scatter
        self.slots: list[Slot] = []
        start = 0
        for name, value in values.items():
            self.slots.append(Slot(name, tuple(value.shape), start))
            start += value.numel()
        ways = over.size if over and cut else 1
        self.length = -(-start // ways) * ways
        self.used = start
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.shard: torch.nn.Parameter | None = None
        self.row: torch.Tensor | None = None
        self._started = False
        self._pending: Any = None
        self._sum: torch.Tensor | None = None
        self._again: torch.Tensor | None = None
        self._lay(values)

    def _lay(self, values: dict[str, torch.Tensor]) -> None:
        if not self.cut:
            self.parameters = {n: torch.nn.Parameter(v.clone()) for n, v in values.items()}
            return
        assert self.over is not None
        example = next(iter(values.values()))
        row = example.new_zeros(self.length)
        for slot, value in zip(self.slots, values.values(), strict=True):
            row[slot.start : slot.start + slot.size] = value.reshape(-1)
        mine = row.chunk(self.over.size)[self.over.index]
        if self.cut == "weights":
            self.shard = torch.nn.Parameter(mine.clone())
            return
        self.row = row
        self.shard = torch.nn.Parameter(mine)  # shares the row's memory: a step of the optimizer changes the weights
        self.parameters = {n: torch.nn.Parameter(v) for n, v in self._views(row).items()}

    def _views(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        return {s.name: row[s.start : s.start + s.size].view(s.shape) for s in self.slots}

    def trained(self) -> Iterable[torch.nn.Parameter]:
        """What the optimizer steps on."""
        return [self.shard] if self.shard is not None else self.parameters.values()

    # -- gradients ---------------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Drops the gradients of the last step."""
        self._started = False
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.shard is not None:
            self.shard.grad = None

    def after_backward(self) -> None:
        """Between micro-batches: cut gradients go to their owners at once (ZeRO-2)."""
        if self.cut == "grads" and any(p.grad is not None for p in self.parameters.values()):
            self._give(self._row_of_gradients())

    def start_reduction(self) -> None:
        """Starts to complete the gradients, once a step; other work may go on until `finish_reduction`."""
        if self._started:
            return
        self._started = True
        if self.cut == "weights" or (self.cut == "grads"):
            self.after_backward()
        elif self.cut == "optimizer":
            self._give(self._row_of_gradients())
        elif self.partial is not None:
            self._sum = self._row_of_gradients()
            self._pending = self.partial.start_all_reduce(self._sum)

    def finish_reduction(self) -> None:
        """Waits for the reduction and puts the completed gradients where the optimizer looks for them."""
        if self._pending is not None:
            assert self._sum is not None
            self._pending.wait()
            for name, gradient in self._views(self._sum).items():
                self.parameters[name].grad = gradient
            self._pending = self._sum = None
        if self.tied is not None:
            for parameter in self.trained():
                if parameter.grad is None or not self.tied.contributes:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad = parameter.grad.contiguous()
                self.tied.group.all_reduce(parameter.grad)

    def _row_of_gradients(self) -> torch.Tensor:
        example = next(iter(self.parameters.values()))
        row = example.new_zeros(self.length) if self.length > self.used else example.new_empty(self.length)
        pieces = self._views(row)
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                pieces[name].zero_()
            else:
                pieces[name].copy_(parameter.grad)
            parameter.grad = None
        return row

    def _give(self, row: torch.Tensor) -> None:
        """Adds this rank's part of a row of gradients to what it owns."""
        assert self.shard is not None
        mine = self.reduce(row)
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad.add_(mine)

    def reduce(self, row: torch.Tensor) -> torch.Tensor:
        """This rank's part of the completed sum of a row that is partial on every rank."""
        assert self.over is not None
        if self.rest is not None:
            self.rest.all_reduce(row)
        if not self.scatter:
            return row.chunk(self.over.size)[self.over.index].clone()
        mine = row.new_empty(self.length // self.over.size)
        self.over.reduce_scatter(mine, row)
        return mine

    # -- weights -----------------------------------------------------------------------------------------------------

    def after_step(self) -> None:
        """Brings the weights that other ranks stepped on (ZeRO-1 and -2)."""
        if self.row is not None:
            assert self.shard is not None and self.over is not None
            self.over.all_gather(self.row, self.shard.detach().clone())

    def full_row(self) -> torch.Tensor:
        """The whole row of weights, gathered where it is cut."""
        assert self.shard is not None and self.over is not None
        row = self.shard.new_empty(self.length)
        self.over.all_gather(row, self.shard.detach())
        return row

    def gathered_again(self) -> torch.Tensor:
        """The row for backward, gathered once until the unit's gradients have been given away."""
        if self._again is None:
            self._again = self.full_row()
        return self._again

    def drop(self) -> None:
        self._again = None


class _Gather(torch.autograd.Function):
    """The weights of a unit from everybody's parts; their gradients are reduced to the owners."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, unit: Unit, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        return tuple(unit._views(row).values())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        unit: Unit = ctx.unit
        example = next(g for g in gradients if g is not None)
        row = example.new_zeros(unit.length)
        for slot, gradient in zip(unit.slots, gradients, strict=True):
            if gradient is not None:
                row[slot.start : slot.start + slot.size] = gradient.reshape(-1)
        unit.drop()
        return unit.reduce(row), None, None


@dataclass
class View:
    """The weights under a module path, by the rest of their names; used as a context, behind which gathered rows are
    dropped."""

    weights: "Weights"
    prefix: str
    gathered: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)

    def __getitem__(self, name: str) -> torch.Tensor:
        name = f"{self.prefix}.{name}" if self.prefix else name
        if name in self.weights.buffers:
            return self.weights.buffers[name].clone() if is_recomputing() else self.weights.buffers[name]
        unit = self.weights.unit_of[name]
        if unit.cut != "weights":
            return self.weights.tensors[name]
        if name not in self.gathered:
            assert unit.shard is not None
            row = unit.full_row()
            self.rows.append(row.data_ptr())
            self.weights.live[row.data_ptr()] = (unit, row)
            views = _Gather.apply(unit.shard, unit, row)  # type: ignore[no-untyped-call]
            self.gathered.update(zip((s.name for s in unit.slots), views, strict=True))
        return self.gathered[name]

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *exc: object) -> None:
        for pointer in self.rows:
            self.weights.live.pop(pointer, None)


class Weights:
    """All weights and buffers of this process by name."""

    def __init__(self, units: list[Unit], buffers: dict[str, torch.Tensor]) -> None:
        self.units = units
        self.buffers = buffers
        self.unit_of = {s.name: u for u in units for s in u.slots}
        self.tensors = {n: p for u in units for n, p in u.parameters.items()}
        self.live: dict[int, tuple[Unit, torch.Tensor]] = {}
        self.gathers = any(u.cut == "weights" for u in units)

    def under(self, prefix: str = "") -> View:
        return View(self, prefix)

    def saving(self) -> AbstractContextManager[Any]:
        """A context for forward in which autograd keeps no gathered weight but gathers it again (ZeRO-3)."""
        if not self.gathers:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, x: torch.Tensor) -> object:
        found = self.live.get(x.untyped_storage().data_ptr())
        if found is None:
            return x
        return found[0], x.size(), x.stride(), x.storage_offset()


def _unpack(kept: object) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    assert isinstance(kept, tuple)
    unit, size, stride, offset = kept
    return unit.gathered_again().as_strided(size, stride, offset)  # type: ignore[no-any-return]
