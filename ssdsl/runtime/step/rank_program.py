"""One rank's part of a program: its role's code with constants, messages and the rank's part of each batch."""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Literal

import torch

from ..data.batch_spec import BatchSpec
from ..errors import EngineError
from ..layout.cut import Piece, elements_at
from ..program.initial_state import InitialState
from ..program.program import CompiledProgram
from ..program.table import RoleEntry
from ..ranks.numbers import on_device
from ..ranks.world import World
from .completion import GradientCompletion
from .parts import kept_outputs, pieces_of
from .provenance import Sites
from .rank_setup import completions_of, messages_of, role_of
from .runner import Runner
from .weights import Weights

Tensors = dict[str, torch.Tensor]
Gather = Literal["all", "first"]  # the ranks that get whole outputs


class RankProgram:
    """Made and used by all ranks alike. A rank without work in the plan has no role, and runs nothing."""

    def __init__(
        self, program: CompiledProgram, world: World, device: torch.device, weights: Weights, state: InitialState
    ) -> None:
        self.table = program.table
        self.world, self.device = world, device
        self.role = role_of(self.table, world)
        self.runner = Runner({}, weights, device, world)
        self.inputs: dict[str, Piece] = {}
        self.sites: Sites | None = None
        if self.role is None:
            return
        self.inputs = {p.name: p for p in pieces_of(self.role.inputs, self.role, world)}
        self.runner.messages = messages_of(self.table, world)
        self.runner.outputs = kept_outputs(self.table, world)
        self.code = program.code(self.role.name)
        self.sites = Sites(self.table, self.role, program.roles[self.role.name])
        self.completions = completions_of(self.role, world) if self.table.trains else {}
        self.take_constants(state)

    def take_constants(self, state: InitialState) -> None:
        """Computes the constants: values that depend on no input and no weight. Keeps this rank's part of some."""
        if self.role is not None:
            types = {n: getattr(torch, dtype) for n, dtype in self.table.constants.items() if n in state}
            given = {n: state[n].to(self.device, dtype) for n, dtype in types.items()}
            with torch.no_grad():
                self.constants: Tensors = self.code.constants(given, self.device)
                for piece in pieces_of(self.role.constants, self.role, self.world):
                    self.constants[piece.name] = piece.of(self.constants[piece.name]).clone()  # no view of the whole

    @property
    def name(self) -> str:
        """The role's name; `idle` without a role."""
        return self.role.name if self.role is not None else "idle"

    @cached_property
    def feed(self) -> BatchSpec:
        """The inputs of this rank's program."""
        return BatchSpec.of(self.table.inputs, self.inputs, casts=self.table.precision is not None)

    def waits(self) -> str:
        """A text of what this rank waits for now; "" if nothing."""
        return self.sites.waits(self.world) if self.sites is not None else ""

    def check_fits(self, other: "RankProgram") -> None:
        """Raises EngineError if this program's weights are not laid out as the other program's."""
        mine, theirs = _weights(self.role), _weights(other.role)
        if different := [name for name, takes in mine.items() if theirs.get(name) != takes]:
            sizes = self.feed.described(other.feed.differing(self.feed.sizes))
            raise EngineError(
                f"for {sizes} the plan puts `{different[0]}` elsewhere",
                "leave such batches out: `drop_last=True`, or pad them to the example's sizes",
            )

    def complete_gradients(self) -> None:
        """Sets, for each flat parameter, the completion of the gradients that this program leaves."""
        for flat in self.runner.weights.flats:
            flat.completion = self.completions.get(flat.number, GradientCompletion())

    def run(self, batch: Mapping[str, torch.Tensor], seed: int, step: int, scale: float = 1.0) -> None:
        """Runs one step on this rank's part of a batch. Gradients are those of `scale` times the loss. Raises
        EngineError, on this rank alone, for numbers in the batch that an operator cannot take."""
        if self.role is None:
            return
        given = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        given |= {name: on_device([seed, step], self.device) for name in self.table.seed}
        self.complete_gradients()
        if any(run.replays for run in self.world.runs):  # nothing is read that CUDA graphs have left in earlier steps
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        try:
            with torch.no_grad():
                prepared = self.code.prepare(self.constants | given, self.device)
            self.runner.step(self.code.step, prepared, scale)
        except (IndexError, RuntimeError) as error:
            assert self.sites is not None
            told = self.sites.failed(error, batch)
            if told is None:
                raise
            raise told from error

    def after_update(self) -> None:
        """Starts to gather the weights that other ranks have updated. All ranks call it after each step of training."""
        if self.role is not None:
            self.code.after_update(self.runner)
        self.runner.doing = None

    def loss(self) -> float:
        """This rank's addend of the step's loss."""
        return sum(map(float, self.losses()))

    def losses(self) -> list[torch.Tensor]:
        """This rank's addend of the step's loss as a tensor; none on a rank without one."""
        losses = [loss for block, loss in self.runner.losses if block in self._adds_losses]
        if not losses:
            return []
        return [losses[0] if len(losses) == 1 else torch.stack(losses).sum()]

    def outputs(self, names: Collection[str], gather: Gather) -> dict[str, torch.Tensor]:
        """Some outputs of the last step, whole, on the CPU, of all ranks or of the first; called by all ranks alike."""
        mine = {output.name: (output, parts) for output, parts in self.runner.parts}
        found = {}
        for entry in (o for o in self.table.outputs if o.name in names):
            whole = torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype))
            if entry.name in mine and mine[entry.name][0].owns:
                for places, part in mine[entry.name][1]:
                    whole[elements_at(places)] = part.detach().cpu()
            self.world.control.merge(whole)
            if gather == "all" or self.world.rank == 0:
                found[entry.name] = whole
        return found

    @cached_property
    def _adds_losses(self) -> frozenset[int]:
        """The blocks whose loss this rank adds. Of ranks that compute the same loss only the first adds it."""
        found = set[int]()
        for block, place in self.table.losses.items():
            at = self.world.at(place.mesh, place.fixed)
            if at is not None and not any(at[axis] for axis in at.keys() - set(place.axes) - place.fixed.keys()):
                found.add(block)
        return frozenset(found)


def _weights(role: RoleEntry | None) -> dict[str, tuple[object, ...]]:
    """The layout of a role's weights."""
    if role is None:
        return {}
    trained = ((f, weight) for f in role.flats for weight in f.weights)
    found: dict[str, tuple[object, ...]] = {w.name: (f.number, f.sharded, f.portions, w.takes) for f, w in trained}
    return found | {w.name: w.takes for w in role.others}
