"""One rank's training: its role's code, its weights, its engine and its optimizer, and what a step leaves behind."""

from contextlib import nullcontext
from typing import Any

import torch

from .engine import Engine
from .flat import FlatParam
from .piece import Piece
from .program import Program
from .record import Recorder
from .table import Table, inputs_of, is_at, messages_of, pieces_of, weights_of
from .world import World


class Trainer:
    """A rank that has a role. Made, and used, by all ranks alike, in a thread that is the rank."""

    def __init__(
        self, program: Program, role: Table, world: World, device: torch.device, optimizer: str, lr: float, seed: int
    ) -> None:
        table, state = program.table, program.weights
        self.table, self.role, self.world, self.device = table, role, world, device
        self.batches = program.batches
        self.seed = seed
        self.code = program.code(role["name"])
        with torch.no_grad():
            self.weights = weights_of(table, role, world, state, device)
            given = {name: state[name].to(device) for name in table["constants"] if name in state}
            self.constants = self.code.constants(given, device)
        self.engine = Engine(messages_of(table, world), self.weights, device, world, self._update)
        self.optimizer = _optimizer(self.weights.flats, optimizer, lr)
        self.inputs = inputs_of(role, world)
        self.grads: list[dict[str, Any]] | None = None
        self.steps = 0
        self.pieces: dict[str, Piece] = {
            p.name: p for f in role["flats"] for p in pieces_of(f["weights"], role, world)
        } | {p.name: p for p in pieces_of(role["others"], role, world)}

    def now(self) -> tuple[int, str]:
        """The step and the task that run now, for another thread."""
        return self.steps, self.engine.doing or "reports"

    def step(self, number: int, grads: list[dict[str, Any]] | None = None) -> float | None:
        """One training step; its loss, on the ranks that compute it. `grads` receives the gradients."""
        whole = self.batches[number % len(self.batches)]
        batch = {name: piece.of(whole[name]).to(self.device) for name, piece in self.inputs.items()}
        batch |= {name: torch.tensor([self.seed, number], device=self.device) for name in self.table["seed"]}
        with torch.no_grad():
            prepared = self.code.prepare(self.constants | batch, self.device)
        self.grads = grads
        self.steps = number
        losses = self.engine.step(self.code.step, prepared)
        self.weights.take_next()
        with torch.no_grad():
            return self._loss(losses)

    def _update(self) -> None:
        """The optimizer's step, once all gradients are complete."""
        if self.grads is not None:
            self.grads.append(self.gradients())
        recorder = self.engine.recorder
        with recorder.span("optimizer") if recorder is not None else nullcontext():
            if self.optimizer is not None:
                self.optimizer.step()

    def record(self) -> Recorder:
        """Note from now on when each task runs."""
        self.engine.recorder = Recorder(self.device, self.world)
        return self.engine.recorder

    def _loss(self, losses: list[torch.Tensor]) -> float | None:
        """The step's loss on the ranks that compute it: the sum of its parts in time, and over the axes that split
        it."""
        place = self.table["loss"]
        if is_at(place, self.world) is None:
            return None
        loss = torch.stack(losses).sum()
        if place["axes"]:
            group = self.world.groups[place["mesh"], tuple(place["axes"])]
            self.world.transport.all_reduce(loss, group.process_group)  # not counted: only the report needs it
        return float(loss)

    def gradients(self) -> dict[str, Any]:
        """This rank's pieces of the gradients, before the next step."""
        found = {}
        for flat in self.weights.flats:
            if flat.shard is not None:
                whole = _gathered(flat, flat.shard.grad)
                values: dict[str, torch.Tensor | None] = dict(flat.views(whole))
            else:
                values = {n: p.grad for n, p in flat.parameters.items()}
            for name, value in values.items():
                piece = self.pieces[name]
                found[name] = piece.saved(value if value is not None else torch.zeros_like(self.weights.tensors[name]))
        return found

    def state(self) -> dict[str, Any]:
        """This rank's pieces of the weights and buffers."""
        weights = {}
        for flat in self.weights.flats:
            values = flat.views(_gathered(flat, flat.shard)) if flat.shard is not None else flat.parameters
            weights.update({n: self.pieces[n].saved(v) for n, v in values.items()})
        return {"weights": weights, "buffers": {n: self.pieces[n].saved(v) for n, v in self.weights.buffers.items()}}


def _optimizer(flats: list[FlatParam], name: str, lr: float) -> torch.optim.Optimizer | None:
    trained = [p for flat in flats for p in flat.trained()]
    if not trained:
        return None
    if name == "sgd":
        return torch.optim.SGD(trained, lr=lr)
    return torch.optim.AdamW(trained, lr=lr, fused=True)


def _gathered(flat: FlatParam, mine: torch.Tensor | None) -> torch.Tensor:
    """All shards end to end, for a dump; not counted as communication of the step."""
    assert flat.shard is not None and flat.shard_group is not None
    mine = torch.zeros_like(flat.shard) if mine is None else mine.detach()
    whole = mine.new_empty(mine.numel() * flat.shard_group.size)
    flat.shard_group.world.transport.all_gather(whole, mine.contiguous(), flat.shard_group.process_group)
    return whole
