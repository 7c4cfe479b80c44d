"""Runs one rank's part of a step. A role's `step(run)` calls forward, send, wait, backward and reduce, in order. Its
`after_update(run)` starts to gather what other ranks have updated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..profile.operator_clock import TimedPlace
from ..profile.recorder import Recorder
from ..ranks.collectives import Journey, StartedReshard
from ..ranks.transfers import Message, Mover, SentSignal
from ..ranks.world import World
from .flat_params import FlatWeights
from .gradient_buckets import filling
from .joins import At, GradientAccumulator, Input
from .parts import KeptOutput, Placed
from .recompute import recomputing
from .split_backward import Waiting, collecting, finish, first_half
from .weights import Weights

Key = tuple[str, At]
Given = torch.Tensor | tuple[torch.Tensor, ...]  # what a block gets for an input
Left = torch.Tensor | StartedReshard  # what it leaves


@dataclass(frozen=True)
class Output:
    """A value for other blocks, in the form that they `read`; its gradient comes back under the same slot. It may be in
    flight when the block ends: the block that reads it awaits it. It is left `again` for blocks that run again, too."""

    slot: str
    gradient: bool = True
    read: bool = True
    again: bool = False


@dataclass(frozen=True)
class Block:
    """A function of inputs, prepared values, weights and time indices, with what it needs to run.

    `loss` is the index of the output that is the loss. `backward` is none, whole, halves, or dgrad (no weights).
    `again`: some of its values are gathered, or computed, again in backward. `gathers` are the flat parameters that
    each of its modules gathers (ZeRO-3), `gathers_again` those that backward does, in order, so that some start ahead.
    `twice`: its forward keeps nothing for backward, and runs again before.
    """

    run: Callable[..., tuple[Left, ...]]
    number: int
    time: dict[str, int]
    inputs: tuple[Input, ...]
    prepared: tuple[str, ...]
    outputs: tuple[Output, ...]
    loss: int | None = None
    backward: str = "whole"
    again: bool = False
    gathers: tuple[tuple[int, ...], ...] = ()
    gathers_again: tuple[tuple[int, ...], ...] = ()
    twice: bool = False


def block(*form: Any, **options: Any) -> Callable[[Callable[..., tuple[Left, ...]]], Block]:
    """A decorator that makes a function a block with these fields."""
    return lambda run: Block(run, *form, **options)


class Runner:
    """One rank's part of a training step, without the optimizer's update."""

    def __init__(self, messages: dict[int, Message], weights: Weights, device: torch.device, world: World) -> None:
        self.messages, self.weights, self.device, self.world = messages, weights, device, world
        self.mover = Mover(device, world)
        self.prepared: dict[str, torch.Tensor] = {}
        self.values: dict[Key, torch.Tensor] = {}
        self.arriving: dict[Key, Journey] = {}  # values in flight, until a block reads them
        self.returning: dict[Key, Journey] = {}  # the ways back of their gradients, until the block ends that read them
        self.gradients = GradientAccumulator()
        self.saved: dict[tuple[int, At], tuple[list[Given], list[GradientEdge | None]]] = {}
        self.halves: dict[tuple[int, At], Waiting] = {}
        self.losses: list[tuple[int, torch.Tensor]] = []  # with the number of the block
        self.scale = 1.0  # factor of the loss in backward
        self.outputs: list[KeptOutput] = []  # those that are kept until the end of a step
        self.parts: list[tuple[KeptOutput, list[Placed]]] = []  # their parts, after a step
        self.doing: str | None = None
        self.recorder: Recorder | None = None

    def step(
        self, run: Callable[["Runner"], None], prepared: dict[str, torch.Tensor], scale: float = 1.0
    ) -> list[tuple[int, torch.Tensor]]:
        """Runs a role's step; returns the losses of its parts, with the numbers of their blocks. Gradients are those of
        `scale` times the loss."""
        self.prepared, self.losses, self.scale = prepared, [], scale
        for flat in self.weights.flats:
            flat.drop_gradients()
        run(self)
        for flat in self.weights.flats:
            flat.finish()
        self.weights.settle()  # an update changes the weights, also those that no task has read
        self.parts = [(output, list(output.parts(self.values))) for output in self.outputs]
        self.doing = None
        self.mover.finish()
        self.values.clear()
        self.arriving.clear()
        self.returning.clear()
        self.gradients.clear()
        return self.losses

    def _task(self, kind: str, letter: str, number: int, at: Mapping[str, int]) -> AbstractContextManager[None]:
        """A context for a task: sets the rank's status, and records the task's time if a recorder is set."""
        part = [*at.values()]
        self.doing = f"{kind} {number} at {part}"
        return self.timed(f"{letter}{number}{part}", letter, number, at, self.mover.take_waited())

    def timed(
        self, span: str, task: str, number: int, at: Mapping[str, int] | None = None, waited_s: float = 0.0
    ) -> AbstractContextManager[None]:
        """A context whose time is recorded as a span if a recorder is set, and that is a task to a tracer."""
        if self.recorder is None and self.world.tracer is None:
            return nullcontext()
        return self._followed(span, task, number, at, waited_s)

    @contextmanager
    def _followed(
        self, span: str, task: str, number: int, at: Mapping[str, int] | None, waited_s: float
    ) -> Iterator[None]:
        recorder, tracer = self.recorder, self.world.tracer
        with (
            recorder.span(span, waited_s) if recorder is not None else nullcontext(),
            tracer.task(task, number, at or {}) if tracer is not None else nullcontext(),
        ):
            yield

    # -- functions ---------------------------------------------------------------------------------------------------

    def forward(self, block: Block, **at: int) -> None:
        """Runs a block; keeps its outputs for their readers, and what its backward needs unless it runs again."""
        part = tuple(at.values())
        with self._task("forward of block", "F", block.number, at):
            outputs = self._run(block, at, learns=block.backward != "none" and not block.twice)
            for output, value in zip(block.outputs, outputs, strict=True):
                if isinstance(value, StartedReshard):
                    self.arriving[output.slot, part] = value.journey
                elif output.read:
                    self.values[output.slot, part] = value.detach()
            if block.loss is not None:
                loss = outputs[block.loss]
                assert isinstance(loss, torch.Tensor)
                self.losses.append((block.number, loss.detach()))

    def forward_again(self, block: Block, **at: int) -> None:
        """Runs the forward of a block again, and keeps what its backward needs; also outputs for blocks that run again
        after it."""
        part = tuple(at.values())
        with self._task("second forward of block", "A", block.number, at), recomputing(self.world):
            outputs = self._run(block, at, learns=True)
            for output, value in zip(block.outputs, outputs, strict=True):
                if output.again:
                    assert isinstance(value, torch.Tensor)
                    self.values[output.slot, part] = value.detach()

    def _run(self, block: Block, at: dict[str, int], *, learns: bool) -> tuple[Left, ...]:
        """The outputs of a block; if it `learns`, what its backward needs is saved."""
        part = tuple(at.values())
        inputs = [self._read(i, at, learns) for i in block.inputs]
        prepared = [self.prepared[name] for name in block.prepared]
        ahead = self.weights.ahead(block.gathers)
        there = self.world.gathered.beside(lambda: (*self.weights.memory(), *inputs_of(inputs), *prepared))
        with torch.set_grad_enabled(learns), self.weights.saving(again=block.again), there, ahead:
            outputs = block.run(*inputs, *prepared, self.weights, *part)
        if learns:
            self.saved[block.number, part] = inputs, _edges(block, outputs)  # the outputs belong to their readers
        return outputs

    def backward(self, block: Block, reduces: Sequence[int] = (), /, **at: int) -> None:
        """Computes the gradients of a block's inputs and weights; meanwhile starts to reduce those of some flat
        parameters."""
        flats = [self.weights.flat(number) for number in reduces]
        with self._task("backward of block", "B", block.number, at), filling(flats, self._reduce_within):
            self._backward(block, at)

    def backward_inputs(self, block: Block, **at: int) -> None:
        """Computes the gradients of a block's inputs: the first half of its backward."""
        part = tuple(at.values())
        with self._task("input gradients of block", "D", block.number, at):
            with collecting(self.world) as waiting, self.weights.saving():
                self._backward(block, at)
            if block.backward == "halves":
                self.halves[block.number, part] = waiting

    def backward_weights(self, block: Block, **at: int) -> None:
        """Computes the gradients of a block's weights: the second half of its backward."""
        part = tuple(at.values())
        with self._task("weight gradients of block", "W", block.number, at):
            finish(self.halves.pop((block.number, part)))

    def _read(self, given: Input, at: dict[str, int], learns: bool) -> Given:
        """A block's input: the joined parts of a value, as a leaf of the block's own autograd graph; the earlier parts
        of its own value as a leaf each."""
        for key in ((given.slot, part) for part in given.parts(at)):
            if (journey := self.arriving.pop(key, None)) is not None:
                self.values[key] = journey.wait()
                if learns and given.gradient:
                    self.returning[key] = journey
        parts = {part: self.values[given.slot, part] for part in given.parts(at)}
        learns = learns and given.gradient
        if given.earlier is not None:
            return tuple(self._earlier((given.slot, part), value, learns) for part, value in parts.items())
        return given.value(parts, at).detach().requires_grad_(learns)

    def _earlier(self, key: Key, value: torch.Tensor, learns: bool) -> torch.Tensor:
        """An earlier part as a leaf, which shares its memory. Its gradient is added to that of its other readers at
        once, so that no task holds the gradients of all layers' parts."""

        def add(leaf: torch.Tensor) -> None:
            assert leaf.grad is not None
            self.gradients.add(key, leaf.grad)
            leaf.grad = None

        leaf = value.detach().requires_grad_(learns)
        if learns:
            leaf.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]
        return leaf

    def _backward(self, block: Block, at: dict[str, int]) -> None:
        part = tuple(at.values())
        inputs, edges = self.saved.pop((block.number, part))
        roots, gradients = [], []
        for position, (output, edge) in enumerate(zip(block.outputs, edges, strict=True)):
            gradient = self.gradients.pop((output.slot, part))
            if position == block.loss:
                own = torch.full_like(self.losses[0][1], self.scale)
                gradient = own if gradient is None else gradient + own
            if gradient is not None and edge is not None:
                roots.append(edge)
                gradients.append(gradient)
        if block.backward == "whole":
            if self.world.tracer is not None:
                self.world.tracer.follow(roots)
            with self.weights.ahead(block.gathers_again):
                torch.autograd.backward(roots, gradients)
        else:
            leaves = [leaf for i in inputs for leaf in ((i,) if isinstance(i, torch.Tensor) else i)]
            first_half(roots, gradients, [leaf for leaf in leaves if leaf.requires_grad])
        for given, leaf in zip(block.inputs, inputs, strict=True):
            if isinstance(leaf, torch.Tensor) and leaf.grad is not None:
                for where, share, regions in given.split(leaf.grad, at):
                    journey = self.returning.pop(key := (given.slot, where), None)
                    self.gradients.add(key, share if journey is None else journey.start_back(share), regions)

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, message: int, **at: int) -> None:
        """Posts this rank's end of a message, without waiting."""
        found, part = self._end_of(message, at)
        if isinstance(found, SentSignal):
            word = torch.zeros(1, dtype=torch.uint8, device=self.device) if found.forward.sends else None
            self.mover.start(found, found.forward, word, message, part)
            return
        value = self.values[found.source_slot, part] if found.forward.sends else None
        self.mover.start(found, found.forward, value, message, part)

    receive = exchange = send  # the message says which boxes a rank sends and receives

    def send_gradient(self, message: int, **at: int) -> None:
        """Posts this rank's end of a message that carries a gradient back, without waiting."""
        found, part = self._end_of(message, at, gradient=True)
        assert not isinstance(found, SentSignal) and found.backward is not None
        gradient = self.gradients.pop((found.target_slot, part))
        if gradient is None and found.backward.sends:  # its readers need no gradient
            gradient = self.mover.zeros(found, found.backward, part)
        self.mover.start(found, found.backward, gradient, message, part, gradient=True)

    receive_gradient = exchange_gradient = send_gradient

    def wait(self, message: int, **at: int) -> None:
        """Waits for a message, and stores its value for the block that reads it."""
        found, part = self._end_of(message, at)
        value = self.mover.wait(message, part)
        if value is not None and not isinstance(found, SentSignal):
            self.values[found.target_slot, part] = value

    def wait_gradient(self, message: int, **at: int) -> None:
        """Waits for a gradient, and adds it to those of the value's other readers."""
        found, part = self._end_of(message, at, gradient=True)
        assert not isinstance(found, SentSignal)
        gradient = self.mover.wait(message, part, gradient=True)
        if gradient is not None:
            self.gradients.add((found.source_slot, part), gradient)

    def _end_of(self, message: int, at: dict[str, int], *, gradient: bool = False) -> tuple[Message, At]:
        """This rank's end of a message, and the part that it carries; sets the rank's status."""
        part = tuple(at.values())
        self.doing = f"{'gradient of ' if gradient else ''}message {message} at {list(part)}"
        return self.messages[message], part

    def free(self, slot: str, *at: int) -> None:
        """Frees a part of a value after its last reader."""
        self.values.pop((slot, at), None)

    # -- weights -----------------------------------------------------------------------------------------------------

    def scatter_gradients(self, flat: int) -> None:
        """Starts to reduce the gradients that a backward has left to the ranks that hold parts of them."""
        with self._on_flat("gradients", flat, "reduce") as weights:
            self._scatter(weights)

    def _scatter(self, flat: FlatWeights) -> None:
        """Starts to scatter gradients, once those before have arrived."""
        self.world.ahead.reduces(flat.add_scattered)
        flat.scatter_gradients()

    def _reduce_within(self, flat: FlatWeights) -> None:
        """Starts to reduce the gradients of a flat parameter during a backward that has computed all of them."""
        tracer = self.world.tracer
        with tracer.aside(TimedPlace("reduce", flat.number)) if tracer is not None else nullcontext():
            if flat.completion.each:
                self._scatter(flat)
            else:
                flat.start_reduce()

    def start_reduce(self, flat: int) -> None:
        """Starts to complete the gradients of a flat parameter."""
        with self._on_flat("gradients", flat, "reduce") as weights:
            weights.start_reduce()

    def wait_reduce(self, flat: int) -> None:
        """Waits until a flat parameter's gradients are complete for the optimizer."""
        with self._on_flat("gradients", flat, "reduce") as weights:
            weights.wait_reduce()

    def keep_weights(self, flat: int) -> None:
        """From here on, what is gathered of a flat parameter stays."""
        self.weights.flat(flat).keep()

    def drop_weights(self, flat: int) -> None:
        """Frees the weights of a flat parameter that stayed."""
        self.weights.flat(flat).drop_kept()

    def start_gather(self, flat: int) -> None:
        """Starts to gather the weights that other ranks have updated; who reads them awaits them. A step that is
        recorded awaits them here, so that the time of a task is that of its operators."""
        with self._on_flat("weights", flat, "optimizer") as weights, torch.no_grad():
            weights.gather()
            if self.recorder is not None:
                weights.settle()

    @contextmanager
    def _on_flat(self, doing: str, flat: int, span: str) -> Iterator[FlatWeights]:
        """A context for work on a flat parameter: sets the rank's status, and records the time."""
        self.doing = f"{doing} {flat}"
        with self.timed(span, span, flat):
            yield self.weights.flat(flat)


def inputs_of(given: Sequence[Given]) -> Iterator[torch.Tensor]:
    """The tensors that a block is given by others."""
    for one in given:
        yield from (one,) if isinstance(one, torch.Tensor) else one


def _edges(block: Block, outputs: Sequence[Left]) -> list[GradientEdge | None]:
    """The graph edges where the gradients of a block's outputs enter. None for a view made under `no_grad`: it inherits
    `requires_grad` but is not part of the graph."""
    has_gradient = (o.gradient or n == block.loss for n, o in enumerate(block.outputs))
    roots = (value.ticket if isinstance(value, StartedReshard) else value for value in outputs)
    found = zip(roots, has_gradient, strict=True)
    return [get_gradient_edge(x) if x is not None and learns and x.requires_grad else None for x, learns in found]
