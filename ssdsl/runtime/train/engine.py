"""The engine: what a training loop calls. It runs on every rank, and all ranks call it alike.

engine.optimizer(torch.optim.AdamW, lr=3e-4)
for batch in engine.loader(dataset, batch_size=64, shuffle=True):
    loss = engine.step(batch, clip=1.0)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..control import Control
from ..errors import EngineError
from ..flat import Weights
from ..held import Held
from ..holdings import Homes, held
from ..piece import Piece
from ..record import Recorder
from ..share import Share
from ..table import join_world, pieces_of, role_of, tie_groups, weights_of
from ..world import World
from .batch import Batch, Part, check, named, part_of
from .optimizer import Groups, Make, Optimizer
from .programs import Programs
from .update import Update, Wish


class Engine:
    """A model in training, as one rank has it.

    `steps` counts the optimizer's steps, `micro_steps` also the calls of `step` that only added to the gradients.
    """

    def __init__(
        self, programs: Programs, world: World, device: torch.device, *, seed: int = 0, precision: str | None = None
    ) -> None:
        self.programs, self.world, self.device = programs, world, device
        self.seed, self.precision = seed, precision
        self.steps = self.micro_steps = 0
        with world.enter():
            self.control = Control(world.transport)
            self.table = programs.training.table
            join_world(self.table, world)
            self.weights, self.pieces = _placed(programs, world, device)
            self._homes = Homes(self.table, world)
            self._update = Update(self.weights, self.held(), self.control, precision)
            self.training = self._share(programs.training)
        self._others: dict[Any, Share] = {}

    def _share(self, program: Any) -> Share:
        join_world(program.table, self.world)
        share = Share(program, self.world, self.device, self.weights, self.programs.state)
        share.runner.updated = lambda: self._update(share)
        return share

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return int(self.table["world_size"])

    # -- what is trained -----------------------------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """What this rank holds of weights and buffers, by the model's names; writing to its tensors changes them."""
        return held(self.weights, self.pieces, self._homes)

    @property
    def optim(self) -> torch.optim.Optimizer:
        """The optimizer, for torch's learning-rate schedulers and the like; raises EngineError before `optimizer`."""
        return self._update.optimizer.torch

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients, before it was clipped, of the last step that clipped."""
        return self._update.norm

    def optimizer(self, make: Make, groups: Groups | None = None, **options: Any) -> torch.optim.Optimizer:
        """Makes the optimizer, as in `engine.optimizer(torch.optim.AdamW, lr=3e-4)`; it is also `engine.optim`.

        `groups` gives options of their own to weights by patterns of the model's names:
        `{"*.bias|*norm*": {"weight_decay": 0.0}}`. They are the first parameter groups, in this order, and what fits
        none is the last, on every rank. Raises EngineError: a pattern that fits no weight, an optimizer that looks at
        whole weights where the plan has parts.
        """
        names = [w["name"] for role in self.table["roles"] for flat in role["flats"] for w in flat["weights"]]
        with self._together():
            self._update.optimizer = Optimizer(make, self._update.weights, list(dict.fromkeys(names)), groups, options)
        return self.optim

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(
        self,
        batch: Batch,
        *,
        clip: float | None = None,
        update: bool = True,
        scale: float = 1.0,
        allow_nan: bool = False,
    ) -> float:
        """One training step on a global batch; its loss, the same number on every rank.

        `batch` is what the model's forward is called with, the same on every rank, or what `engine.loader` yields.
        `clip` is the largest norm of all gradients. With `update=False` the gradients are kept, and added to those of
        the next step; `scale` multiplies the loss whose gradients are taken (1/4 for the mean of four batches).
        Raises EngineError: a batch of other names, sizes or dtypes; a loss that is not finite, unless `allow_nan`:
        then nothing was updated.
        """
        with self.world.enter():
            with self._together():
                share, part = self._find(batch)
                if update:
                    _ = self.optim
            self._update.wish = Wish(clip, update, scale, allow_nan)
            share.run(part, self.seed, self.micro_steps, self._update.loss_scale)
            if share.role is None:
                self._update(share)
            loss = self._update.result(self.micro_steps)
            self.weights.take_next()
        self.micro_steps += 1
        self.steps += self._update.updated
        return loss

    def _find(self, batch: Batch) -> tuple[Share, Part]:
        """The program for a batch, and this rank's part of it."""
        inputs, own = self.table["inputs"], self.training.inputs
        if not isinstance(batch, Part):
            whole = named(batch, inputs)
            batch = part_of(whole, own)
        check(batch, inputs)
        return self.training, batch

    # -- what ranks do together ----------------------------------------------------------------------------------------

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What one rank finds wrong inside, all raise."""
        error: EngineError | None = None
        try:
            yield
        except EngineError as found:
            error = found
        self.control.vote(str(error) if error is not None else None)

    def watch_gradients(self, watch: Callable[[], None]) -> None:
        """Calls `watch` in each step, when the gradients are complete and the optimizer has not stepped yet."""
        self._update.watch = watch

    def record(self) -> Recorder:
        """Note from now on when each task runs."""
        self.training.runner.recorder = Recorder(self.device, self.world)
        return self.training.runner.recorder

    def now(self) -> tuple[int, str]:
        """The step and the task that run now, for another thread."""
        return self.micro_steps, self.training.runner.doing or "reports"

    def waits(self) -> str:
        """What this rank waits for now, in words, for another thread; empty where it waits for nobody."""
        sites = self.training.sites
        found = sites.waits(self.world) if sites is not None else ""
        return found or ("the word of all ranks" if self.control.waits else "")


def _placed(programs: Programs, world: World, device: torch.device) -> tuple[Weights, dict[str, Piece]]:
    """This rank's weights, and of each which part of the whole it is."""
    table = programs.training.table
    role = role_of(table, world)
    if role is None:
        tie_groups(table, world)
        return Weights([], {}, world), {}
    with torch.no_grad():
        weights = weights_of(table, role, world, programs.state, device)
    listed = [w for flat in role["flats"] for w in flat["weights"]] + role["others"]
    return weights, {p.name: p for p in pieces_of(listed, role, world)}
