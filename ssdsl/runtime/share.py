"""One rank's share of a program: its role's code with its constants, messages and part of each batch."""

from collections.abc import Mapping

import torch

from .flat import Weights
from .piece import Piece
from .program import Program
from .runner import Runner
from .state import State
from .table import Table, is_at, messages_of, pieces_of, role_of
from .world import World

Tensors = dict[str, torch.Tensor]


class Share:
    """Made, and used, by all ranks alike. A rank that the plan gives nothing to do has no role, and runs nothing."""

    def __init__(self, program: Program, world: World, device: torch.device, weights: Weights, state: State) -> None:
        self.table: Table = program.table
        self.world, self.device = world, device
        self.role = role_of(self.table, world)
        self.runner = Runner({}, weights, device, world)
        self.inputs: dict[str, Piece] = {}
        if self.role is None:
            return
        self.inputs = {p.name: p for p in pieces_of(self.role["inputs"], self.role, world)}
        self.runner.messages = messages_of(self.table, world)
        self.code = program.code(self.role["name"])
        with torch.no_grad():
            given = {name: state[name].to(device) for name in self.table["constants"] if name in state}
            self.constants: Tensors = self.code.constants(given, device)

    @property
    def name(self) -> str:
        """The role's, `idle` for none."""
        return str(self.role["name"]) if self.role is not None else "idle"

    def run(self, batch: Mapping[str, torch.Tensor], seed: int, step: int, scale: float = 1.0) -> None:
        """One step on this rank's parts of a batch. The gradients are those of `scale` times the loss."""
        if self.role is None:
            return
        given = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        given |= {name: torch.tensor([seed, step], device=self.device) for name in self.table["seed"]}
        with torch.no_grad():
            prepared = self.code.prepare(self.constants | given, self.device)
        self.runner.step(self.code.step, prepared, scale)

    def loss(self) -> float:
        """What this rank adds to the loss of the step: of ranks that compute the same, the first adds it."""
        place, losses = self.table["loss"], self.runner.losses
        at = is_at(place, self.world)
        if at is None or any(at[axis] for axis in at.keys() - set(place["axes"]) - set(place["fixed"])):
            return 0.0
        return float(torch.stack(losses).sum())
