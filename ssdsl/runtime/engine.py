"""Runs a rank's tasks: forward and backward of blocks, sends and receives between them, and the step around it all."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .halves import Half, collecting, finish, first_half
from .moves import join_sizes, take, take_sizes
from .record import Recorder
from .transfers import Mover, Transfer
from .weights import Weights
from .world import World

At = tuple[int, ...]
Key = tuple[str, At]


@dataclass(frozen=True)
class Join:
    """Makes the parts of a value along an index in time one: joined along `dim` within `outer` blocks, or summed."""

    index: str
    count: int
    dim: int | None = None
    outer: int = 1
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Input:
    """A value from another block: `slot` is where it is kept here, `time` the indices of its parts."""

    slot: str
    time: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    learns: bool = True


@dataclass(frozen=True)
class Output:
    """A value for other blocks; its gradient comes back under the same slot."""

    slot: str
    learns: bool = True


@dataclass(frozen=True)
class Block:
    """A function of inputs, prepared values, weights and the indices in time, and what surrounds it."""

    run: Callable[..., tuple[torch.Tensor, ...]]
    time: dict[str, int]
    inputs: tuple[Input, ...]
    prepared: tuple[str, ...]
    outputs: tuple[Output, ...]
    loss: int | None = None  # which output is the loss
    backward: bool = True
    halves: bool = False  # the gradients of its weights are a task of their own
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


PHASES = {
    "F": "forward of block",
    "B": "backward of block",
    "D": "input gradients of block",
    "W": "weight gradients of block",
    "f": "transfer",
    "b": "gradient of transfer",
}


@dataclass(frozen=True)
class Task:
    """`F` and `B` run a block at indices `at`, `D` and `W` the halves of its backward (of inputs, of weights); `f` and
    `b` carry a transfer's value or gradient."""

    phase: str
    number: int
    at: At

    def __str__(self) -> str:
        return f"{PHASES[self.phase]} {self.number} at {list(self.at)}"


class Engine:
    """One rank's share of a training step."""

    def __init__(
        self,
        blocks: dict[int, Block],
        transfers: dict[int, Transfer],
        tasks: list[Task],
        weights: Weights,
        device: torch.device,
        world: World,
    ) -> None:
        self.blocks, self.transfers, self.tasks, self.weights = blocks, transfers, tasks, weights
        self.world = world
        self.mover = Mover(device, world)
        self.prepared: dict[str, torch.Tensor] = {}
        self.values: dict[Key, torch.Tensor] = {}
        self.reads: dict[Key, int] = {}
        self.gradients: dict[Key, torch.Tensor] = {}
        self.kept: dict[tuple[int, At], tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]] = {}
        self.halves: dict[tuple[int, At], list[Half]] = {}
        self.losses: list[torch.Tensor] = []
        self.doing: Task | None = None
        self.recorder: Recorder | None = None
        self._uses = self._count_uses()
        self._reducible = self._last_backwards()

    def step(self, prepared: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs all tasks of one training step up to complete gradients; returns the losses of its parts."""
        self.prepared = prepared
        self.losses = []
        self.reads = dict(self._uses)
        for unit in self.weights.units:
            unit.start_step()
        for position, task in enumerate(self.tasks):
            self.doing = task
            if self.recorder is None:
                self._run(task)
            else:
                self._recorded(task, self.recorder)
            for unit in self._reducible.get(position, ()):
                unit.start_reduction()
        self.doing = None
        self.mover.finish()
        start = self.recorder.now() if self.recorder is not None else 0.0
        for unit in self.weights.units:
            unit.start_reduction()
        for unit in self.weights.units:
            unit.finish_reduction()
            unit.drop()  # the optimizer changes the weights
        if self.recorder is not None:
            self.recorder.add("reduce", start)
        self.values.clear()
        self.gradients.clear()
        return self.losses

    def _recorded(self, task: Task, recorder: Recorder) -> None:
        start, waited = recorder.now(), self.mover.waited_s
        self._run(task)
        name = f"{task.phase}{task.number}{list(task.at)}"
        recorder.add(name, start, self.mover.waited_s - waited)

    def _run(self, task: Task) -> None:
        match task.phase:
            case "F":
                self._forward(task, self.blocks[task.number])
            case "B":
                self._backward(task, self.blocks[task.number])
            case "D":
                with collecting(self.world) as waiting, self.weights.saving():
                    self._backward(task, self.blocks[task.number])
                self.halves[task.number, task.at] = waiting
            case "W":
                finish(self.halves.pop((task.number, task.at)))
                self._after_backward()
            case "f":
                self._carry(task, self.transfers[task.number])
            case _:
                self._carry_back(task, self.transfers[task.number])

    # -- forward -----------------------------------------------------------------------------------------------------

    def _forward(self, task: Task, block: Block) -> None:
        at = dict(zip(block.time, task.at, strict=True))
        inputs = [self._read(i, at, block.backward) for i in block.inputs]
        prepared = [self.prepared[name] for name in block.prepared]
        with torch.set_grad_enabled(block.backward), self.weights.saving():
            outputs = block.run(*inputs, *prepared, self.weights, *task.at)
        for output, value in zip(block.outputs, outputs, strict=True):
            if self._uses.get((output.slot, task.at)):
                self.values[output.slot, task.at] = value.detach()
        if block.loss is not None:
            self.losses.append(outputs[block.loss].detach())
        if block.backward:
            self.kept[task.number, task.at] = inputs, outputs

    def _read(self, given: Input, at: dict[str, int], backward: bool) -> torch.Tensor:
        """A block's input: the parts of a value, made one, as a leaf of the block's own graph."""
        parts = {part: self._value((given.slot, part)) for part in _parts(given, at)}
        value = _join(parts, given)
        return value.detach().requires_grad_(given.learns and backward)

    def _value(self, key: Key) -> torch.Tensor:
        self.mover.arrive(key, self.values)
        value = self.values[key]
        self.reads[key] -= 1
        if not self.reads[key]:
            del self.values[key]
        return value

    # -- backward ----------------------------------------------------------------------------------------------------

    def _backward(self, task: Task, block: Block) -> None:
        inputs, outputs = self.kept.pop((task.number, task.at))
        roots, gradients = [], []
        for position, (output, value) in enumerate(zip(block.outputs, outputs, strict=True)):
            self.mover.arrive((output.slot, task.at), self.gradients, gradient=True)
            gradient = self.gradients.pop((output.slot, task.at), None)
            if position == block.loss:
                gradient = torch.ones_like(value)
            if gradient is not None and value.requires_grad:
                roots.append(value)
                gradients.append(gradient)
        if block.halves:
            first_half(roots, gradients, [i for i in inputs if i.requires_grad])
        else:
            torch.autograd.backward(roots, gradients)
        at = dict(zip(block.time, task.at, strict=True))
        for given, leaf in zip(block.inputs, inputs, strict=True):
            if leaf.grad is not None:
                self._give_back(given, at, leaf.grad)
        if not block.halves:
            self._after_backward()

    def _after_backward(self) -> None:
        for unit in self.weights.units:
            unit.after_backward()

    def _give_back(self, given: Input, at: dict[str, int], gradient: torch.Tensor) -> None:
        for part, piece in _unjoin(gradient, given, at):
            key = (given.slot, part)
            self.gradients[key] = self.gradients[key] + piece if key in self.gradients else piece

    # -- transfers ---------------------------------------------------------------------------------------------------

    def _carry(self, task: Task, transfer: Transfer) -> None:
        if not transfer.source_slot:
            self._signal(task, transfer)
            return
        value = self._value((transfer.source_slot, task.at)) if transfer.forward.sends else None
        self.mover.move(transfer.forward, value, (transfer.target_slot, task.at), task.number * 2, task.at, transfer)

    def _signal(self, task: Task, transfer: Transfer) -> None:
        """Tells other devices, or waits to be told, that an earlier task of the plan is done."""
        word = torch.zeros(1, dtype=torch.uint8, device=self.mover.device) if transfer.forward.sends else None
        key = (f"signal {task.number}", task.at)
        self.mover.move(transfer.forward, word, key, task.number * 2, task.at, transfer)
        self.mover.arrive(key, {})

    def _carry_back(self, task: Task, transfer: Transfer) -> None:
        assert transfer.backward is not None
        gradient = self.gradients.pop((transfer.target_slot, task.at), None)
        if gradient is None and transfer.backward.sends:  # its readers let no gradient through
            gradient = self.mover.zeros(transfer.backward, task.at, transfer)
        key = (transfer.source_slot, task.at)
        self.mover.move(transfer.backward, gradient, key, task.number * 2 + 1, task.at, transfer)

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def _count_uses(self) -> dict[Key, int]:
        """How often each part of each value is read in a step, so that it can be dropped behind its last reader."""
        uses: dict[Key, int] = {}
        for task in self.tasks:
            if task.phase == "F":
                block = self.blocks[task.number]
                at = dict(zip(block.time, task.at, strict=True))
                keys = [(i.slot, part) for i in block.inputs for part in _parts(i, at)]
            elif (
                task.phase == "f"
                and self.transfers[task.number].source_slot
                and self.transfers[task.number].forward.sends
            ):
                keys = [(self.transfers[task.number].source_slot, task.at)]
            else:
                continue
            for key in keys:
                uses[key] = uses.get(key, 0) + 1
        return uses

    def _last_backwards(self) -> dict[int, list[Any]]:
        """After which task the gradients of all of a unit's weights are there; before that nothing may be reduced."""
        last: dict[int, int] = {}
        for position, task in enumerate(self.tasks):
            if task.phase in "BW":
                last[task.number] = position
        if not last:
            return {}
        return {max(last.values()): list(self.weights.units)}


def _parts(given: Input, at: dict[str, int]) -> Iterator[At]:
    """The parts of a value that a block reads at some indices: its own where both have an index, else all of them."""
    counts = {j.index: j.count for j in given.joins}
    return itertools.product(*(range(counts[i]) if i in counts else (at[i],) for i in given.time))


def _join(parts: dict[At, torch.Tensor], given: Input) -> torch.Tensor:
    for join in given.joins:
        where = given.time.index(join.index)
        groups: dict[At, list[torch.Tensor]] = {}
        for part, value in parts.items():
            groups.setdefault((*part[:where], 0, *part[where + 1 :]), []).append(value)
        parts = {part: _joined(values, join) for part, values in groups.items()}
    (value,) = parts.values()
    return value


def _joined(values: list[torch.Tensor], join: Join) -> torch.Tensor:
    if len(values) == 1:
        return values[0]
    if join.dim is None:
        return torch.stack(values).sum(0) if len(values) > 2 else values[0] + values[1]
    if join.outer == 1:
        return torch.cat(values, join.dim)
    return join_sizes(values, join.dim, join.outer)


def _unjoin(gradient: torch.Tensor, given: Input, at: dict[str, int]) -> Iterator[tuple[At, torch.Tensor]]:
    pieces: list[tuple[dict[str, int], torch.Tensor]] = [(dict(at), gradient)]
    for join in reversed(given.joins):
        pieces = [
            ({**where, join.index: k}, _piece(value, join, k)) for where, value in pieces for k in range(join.count)
        ]
    for where, value in pieces:
        yield tuple(where[i] for i in given.time), value


def _piece(value: torch.Tensor, join: Join, k: int) -> torch.Tensor:
    if join.dim is None:
        return value
    if join.sizes is not None:
        return take_sizes(value, join.dim, join.outer, join.sizes, k)
    return take(value, join.dim, join.outer, join.count, k)
