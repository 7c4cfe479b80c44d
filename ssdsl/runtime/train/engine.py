"""The engine, which a training loop calls. It runs on every rank, and all ranks make the same calls.

engine.optimizer(torch.optim.AdamW, lr=3e-4)
for batch in engine.loader(dataset, batch_size=64, shuffle=True):
    loss = engine.step(batch, clip=1.0)
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any

import torch

from ..data.batch import Batch
from ..data.checked_batch import CheckedBatch
from ..data.loader import Loader, loader_options
from ..errors import EngineError
from ..layout.cut import Piece
from ..profile.recorder import Recorder
from ..program.returned import part_of, rebuilt
from ..program.table import Table
from ..ranks.world import World
from ..step.parts import LocalTensor, ReplicaOwners, local_tensors, pieces_of
from ..step.rank_program import Gather, RankProgram
from ..step.rank_setup import join_world, role_of, tie_groups, weights_of
from ..step.weights import Weights
from .check_optimizer import Groups, Make
from .engine_checkpoints import EngineCheckpoints
from .failed_step import failed_step
from .homes import Homes, has_homes
from .optimizer import Optimizer, chosen_weights, stepped
from .precision import HALF, Scaler
from .programs import Programs, Variant
from .rank_programs import RankPrograms
from .step_end import StepEnd, StepOptions


class Engine:
    """A model in training, as one rank has it.

    `steps` counts the optimizer's steps, `micro_steps` also the calls of `step` that only added to the gradients.
    """

    def __init__(
        self,
        programs: Programs,
        world: World,
        device: torch.device,
        *,
        seed: int = 0,
        background: bool = True,
    ) -> None:
        self.programs, self.world, self.device = programs, world, device
        self.seed = seed
        self.steps = self.micro_steps = 0
        with world.enter():
            self.control = world.control
            self.table = programs.training.table
            join_world(self.table, world)
            self.precision: str | None = self.table.precision
            half = HALF[self.precision] if self.precision is not None else None
            self.weights, self.pieces = _placed(programs, world, device, half)
            self._owners = ReplicaOwners(self.table, world)
            masters = programs.state if half is not None else None
            scaler = Scaler() if half is torch.float16 else None
            homes, role = None, role_of(self.table, world)
            flats = role.flats if role is not None else ()
            on_host = {w.name for flat in flats if flat.on_host == "optimizer" for w in flat.weights}
            if has_homes(self.table):
                homes = Homes(role, world, self.weights.flats, self.held(), device, masters, on_host)
            away = homes.names if homes is not None else ()
            trained = stepped(self.weights.flats, self.held(), masters, away, on_host)
            self.ending = StepEnd(trained, self.control, scaler, homes)
            made = RankPrograms(programs, world, device, self.weights, lambda: self.micro_steps)
        self.rank_programs, self.training = made, made.training
        self._checkpoints = EngineCheckpoints(self, background)
        self.since = "since before the first step"  # when a weight that is not finite may have become so

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return int(self.table.world_size)

    @property
    def updates(self) -> int:
        """The number of steps, with those that an overflow in float16 has left out: what a loop counts."""
        return self.steps + (self.scaler.skipped if self.scaler is not None else 0)

    @property
    def ran(self) -> Table:
        """The table of the program that ran last: a batch of other sizes than the example's has one of its own."""
        return self.rank_programs.running.table

    def stop_on(self, *signals: Signals) -> None:
        """Takes signals as a request to stop, as in `engine.stop_on(SIGTERM, SIGUSR1)`: `stopping` is then true after
        the step. A second one ends this rank at once. Raises EngineError outside of the main thread."""
        self.ending.request.listen(*signals)

    @property
    def stopping(self) -> bool:
        """Whether a rank had been asked to stop when the last step ended; the same on all ranks."""
        return self.ending.is_stopping

    # -- what is trained -----------------------------------------------------------------------------------------------

    def held(self) -> list[LocalTensor]:
        """This rank's parts of weights and buffers, by the model's names; writing to these tensors changes the
        model."""
        return local_tensors(self.weights, self.pieces, self._owners)

    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's part of each weight and buffer, by the model's names, in the shape of that part; for half
        precision the float32 master weights. What no role uses, such as the statistics of a frozen batch norm, is whole
        on each rank.

        They are current until the next step.
        """
        masters = {w.name: w.parameter.detach() for w in self.ending.weights}
        held = [*self.held(), *self._checkpoints.untrained()]
        return {one.name: masters.get(one.name, one.tensor) for one in held}

    @torch.no_grad()
    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Writes back the tensors of `tensors`, or other numbers of the same shapes, such as averages over steps.

        Called by all ranks alike. Names that only other ranks hold are left out. Raises EngineError, before anything is
        written, for a name that the model does not have, or another shape.
        """
        with self.world.enter():
            own = self.tensors()
            with self.rank_programs.together():
                self._check_put(tensors, own)
            for name, held in own.items():
                if name in tensors:
                    held.copy_(tensors[name])
            for weight in self.ending.weights:
                weight.give_back()
            if self.ending.homes is not None:
                self.ending.homes.refresh()
            self.complete()
            self.since = "since `engine.put`"
            still = {one.name: own[one.name] for one in self._checkpoints.untrained() if one.name in tensors}
            if still:
                self._checkpoints.take(still)

    def _check_put(self, tensors: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
        change = "give tensors by the names of `engine.tensors()`, in the shapes that it returns on this rank"
        known = {*own, *self.programs.state.names.values()}
        if unknown := [name for name in tensors if name not in known]:
            raise EngineError(f"the model has no weight or buffer `{unknown[0]}`", change)
        for name, held in own.items():
            if name in tensors and not isinstance(tensors[name], torch.Tensor):
                raise EngineError(f"`{name}` is {tensors[name]!r}, not a tensor", change)
            if name in tensors and tensors[name].shape != held.shape:
                shapes = f"{list(tensors[name].shape)}, and this rank holds {list(held.shape)} of it"
                raise EngineError(f"`{name}` is of shape {shapes}", change)

    @property
    def optim(self) -> torch.optim.Optimizer:
        """The optimizer, for torch's learning-rate schedulers and the like; raises EngineError before `optimizer`, and
        if there are several."""
        return self.ending.optimizers.only().torch

    @property
    def scaler(self) -> Scaler | None:
        """The loss scale, if the model is in float16; else None."""
        return self.ending.scaler

    @property
    def grad_norm(self) -> float | None:
        """The 2-norm of all gradients together before clipping, of the last step that clipped; None before the first
        one."""
        return self.ending.norm

    def optimizer(
        self, make: Make, groups: Groups | None = None, *, weights: str | None = None, **options: Any
    ) -> torch.optim.Optimizer:
        """Makes the optimizer, as in `engine.optimizer(torch.optim.AdamW, lr=3e-4)`; it is also `engine.optim`.

        With `weights`, patterns of the model's names (`"critic.*|*.head.*"`), it steps on these alone. There may be
        several optimizers, each with weights of its own; `step` is told which of them step.

        `groups` gives options to weights by patterns of the model's names: `{"*.bias|*norm*": {"weight_decay": 0.0}}`.
        Each entry is a parameter group, in this order; the weights that match none are the last group, on every rank. A
        group may have a class of its own, and then its options alone:
        `{"h.*.weight": {"class": torch.optim.Muon, "lr": 0.02}}`.
        Raises EngineError: for a pattern that matches no weight; for an optimizer that needs whole weights where the
        plan splits them, or takes no sparse gradients where one device has some; for options that it does not take, or
        that differ between ranks.
        """
        names = {w.name: [w.name] for role in self.table.roles for flat in role.flats for w in flat.weights}
        for name, first in self.programs.state.aliases.items():
            if first in names:
                names[first].append(name)
        self.weights.settle()  # an optimizer may copy what it is made for
        with self.rank_programs.together():
            sparse = self.table.sparse
            mine = chosen_weights(names, weights)
            made = Optimizer(make, self.ending.optimized, mine, groups, options, sparse, self.by_matrix())
            self.ending.optimizers.add(made)
        if (other := self.control.outlier(made.options().encode())) is not None:
            raise EngineError(
                f"the optimizer's options on rank {other} are not those on rank 0",
                "give all ranks the same options: they step on copies and parts of the same weights",
            )
        return made.torch

    def by_matrix(self) -> str:
        """The line of a plan with which its optimizer steps on whole weights."""
        cut = {axis for role in self.table.roles for flat in role.flats for axes in flat.sharded for axis in axes}
        names = {axis: None for mesh in self.table.meshes for axis, size in mesh.axes.items() if size > 1}
        axes = [axis for axis in names if axis in cut] or [*names]
        return f"split model.optimizer by matrix into {', '.join(axes)}"

    # -- data ----------------------------------------------------------------------------------------------------------

    def loader(self, dataset: Any, batch_size: int | None = None, *, evaluate: bool = False, **options: Any) -> Loader:
        """A loader of global batches that are the same under any plan; this rank loads the part that it needs.

        - `dataset`: a map-style or iterable data set of samples, or a DataLoader.
        - `batch_size`: of the global batch, in samples.
        - `evaluate`: the batches are for `evaluate` and `predict`, which may need other parts.
        - Options are those of `Loader` (shuffle, seed, collate_fn, drop_last, buckets, ...) and of `Workers`
          (num_workers, prefetch_factor, ...).

        Checkpoints save the loader's position. A batch of other sizes, such as a smaller last one with
        `drop_last=False`, or of a bucket, gets a program of its own, compiled here if the sizes are known, else when
        the batch comes. Raises EngineError for an unknown option, or a data set that cannot be loaded.
        """
        wanted = Variant("evaluate" if evaluate else "train")
        options = loader_options(options)
        made = Loader(
            dataset,
            self.rank_programs.of(wanted).feed,
            self.control,
            feeds=lambda sizes: self.rank_programs.of(replace(wanted, sizes=sizes)).feed,
            batch_size=batch_size,
            **options,
        )
        made.prepare()
        self._checkpoints.loaders.append(made)
        return made

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(
        self,
        batch: Batch,
        *,
        loss: str | None = None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        clip: float | None = None,
        update: bool = True,
        scale: float = 1.0,
        allow_nan: bool = False,
        find_nan: bool = False,
    ) -> float:
        """One training step on a global batch; its loss, the same number on every rank.

        - `batch`: the arguments of the model's forward, the same on every rank, or a batch of `engine.loader`. Its
          sizes, as the number of samples or the length of sequences, may be others than the example's.
        - `loss`: of several losses the one of this step; by default it is their sum.
        - `optimizer`: of several optimizers those that step; gradients of other weights are dropped.
        - `clip`: the largest norm of all gradients together.
        - `update`: if false, the gradients are kept and added to those of the next step.
        - `scale`: multiplies the loss before backward; 1/4 for the mean of four batches.
        - `find_nan`: gradients and updated weights are checked too, and the error names what made the first number that
          is not finite: the step runs again, with each operator looked at.

        Raises EngineError for a batch of other names, sizes or dtypes; for a `clip` that is not positive; and, unless
        `allow_nan`, for a loss that is not finite: then nothing was updated.
        """
        made = self.ending.optimizers
        steps = made.asked(optimizer) if update or optimizer is not None or len(made) > 1 else []
        options = StepOptions(clip, update, scale, allow_nan, find_nan, tuple(steps))
        with self.world.enter():
            share, part = self.rank_programs.find(Variant("train", loss=self.rank_programs.known_loss(loss)), batch)
            self.rank_programs.running = share
            self.ending.options = options
            scale = self.ending.loss_scale
            share.run(part, self.seed, self.micro_steps, scale)
            self.ending(share)
            share.after_update()
            if self.ending.not_finite is not None:
                self.weights.next.clear()
                error = failed_step(self, self.ending.not_finite, share, part, scale)
                self.weights.next.clear()
                raise error
            self.weights.take_next()
        self.micro_steps += 1
        self.steps += self.ending.updated
        if self.ending.updated:
            step = f"the update of step {self.micro_steps - 1}"
            self.since = (
                f"it was changed after {step}, which left it finite" if find_nan else f"since {step}, or before"
            )
        if isinstance(batch, CheckedBatch):
            self._checkpoints.note(batch)
        return self.ending.loss

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, batches: Batch | Iterable[Batch], *, loss: str | None = None) -> float:
        """The mean loss of one or more global batches, with the module in eval mode; each sample has equal weight.

        Dropout is off, running statistics are used and not updated. Returns the same number on every rank, also before
        any training. Raises EngineError as `step` does.
        """
        total, samples = 0.0, 0
        for batch in self._many(batches):
            share = self._evaluated(Variant("evaluate", loss=self.rank_programs.known_loss(loss)), batch)
            (mean,) = self.control.sum([share.loss()])
            total, samples = total + mean * share.feed.samples, samples + share.feed.samples
        if not samples:
            raise EngineError("there is no batch to evaluate", "give at least one")
        return total / samples

    def _many(self, batches: Any) -> Iterable[Batch]:
        """The batches as an iterable. A tuple of tensors is one batch if the model takes several inputs."""
        if isinstance(batches, (Mapping, torch.Tensor)):
            return [batches]
        if isinstance(batches, list | tuple) and len(self.table.inputs) > 1:
            return [batches] if any(isinstance(one, torch.Tensor) for one in batches) else batches
        with self.rank_programs.together():
            if not isinstance(batches, Iterable):
                raise EngineError(f"what is to be evaluated is {batches!r}", "give a batch, several, or a loader")
        return batches

    def predict(self, batch: Batch, *outputs: str | int, gather: Gather = "all") -> dict[str | int, Any]:
        """Outputs of the module in eval mode for a global batch, by name, as in `engine.predict(batch, "logits")`.

        `outputs` are keys or attributes of forward's result, or positions in its tuple; by default all of them. A
        tuple, list or dictionary in it is returned as one; `"hidden.0"` is the first tensor of a tuple `hidden`.
        Tensors are whole, in the shapes that one device returns, on all ranks and on the CPU; with `gather="first"` on
        rank 0 alone, and the other ranks get an empty dictionary. Raises EngineError as `step` does, and for an unknown
        output.
        """
        share = self._evaluated(Variant("evaluate", outputs=tuple(map(str, outputs)) or None), batch)
        returned = share.table.returned
        if not any(leaf.is_tensor for leaf in returned):
            raise EngineError(
                "the forward returns its loss alone, so there is nothing to predict",
                "let it return more beside the loss, as in `return {'loss': loss, 'logits': logits}`",
            )
        asked = [leaf.name for leaf in returned if not outputs or any(leaf.is_in(str(name)) for name in outputs)]
        found = share.outputs(asked, gather)
        if not found:
            return {}
        return {name: part_of(returned, str(name), found) for name in outputs} or rebuilt(returned, found)

    def _evaluated(self, variant: Variant, batch: Batch) -> RankProgram:
        with self.world.enter():
            share, part = self.rank_programs.find(variant, batch)
            self.rank_programs.running = share
            with self.world.uncounted():
                share.run(part, self.seed, self.micro_steps)
        return share

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(
        self, folder: str | Path, *, keep: int | None = 3, wait: bool = False, more: dict[str, Any] | None = None
    ) -> None:
        """Saves a checkpoint of this step into a folder, beside those of other steps; the newest `keep` stay.

        Returns when the tensors are copied. A later failure is raised by the next `save`, `load` or `close`, or by this
        call with `wait`. A checkpoint holds weights, buffers, the optimizer's state, learning rates and their
        schedulers, accumulated gradients, the loss scale, the step, the seed, the loaders' positions, the plan, and
        `more`: plain values that `resume` returns.
        """
        with self.world.enter():
            self._checkpoints.save(folder, keep, wait, more or {})

    def load(self, folder: str | Path, *, strict: bool = True, cast: bool = False) -> dict[str, Any]:
        """Loads weights and buffers saved under any plan, and the optimizer's state if there is an optimizer.

        `folder` is a checkpoint, or a folder of several, of which the newest is taken. Without `strict` names may be
        missing on either side; with `cast` other number types are converted. Returns the facts saved about the
        training. Raises EngineError if there is no checkpoint, or it is damaged, or of another model or optimizer.
        """
        with self.world.enter():
            self.since = f"since it was loaded from `{folder}`"
            return self._checkpoints.load(folder, strict, cast)

    @torch.no_grad()
    def complete(self) -> None:
        """Gathers on each rank the weights that other ranks updated (ZeRO-1 and -2)."""
        for flat in self.weights.flats:
            flat.gather()
        self.weights.settle()

    def replan(self, plan: str | os.PathLike[str], params: Mapping[str, int] | None = None) -> int:
        """Goes on under another plan, for as many devices: a file, or the name of a plan that comes with ssdsl. Called
        by all ranks between two steps, behind one that updates. Returns the bytes that this rank got from others.

        Weights, buffers and the optimizers' state go straight from rank to rank: what a rank has of its new parts stays
        there, and the rest comes from one rank that has it. Optimizers, schedulers and the loss scale go on. A loop
        over a loader's batches ends before, and another one begins where it was. Raises EngineError, before anything
        has changed, for a plan that does not compile or is for another number of devices.
        """
        from .replan import replan

        if not isinstance(plan, str | os.PathLike):
            raise EngineError(f"the plan is {plan!r}", "give a file, or the name of a plan that comes with ssdsl")
        numbers = params if params is not None else {}
        if not isinstance(numbers, Mapping) or not all(type(n) is int for n in numbers.values()):
            raise EngineError(f"params={params!r} sets no parameters", 'give whole numbers by name: `params={"T": 2}`')
        with self.world.enter():
            return replan(self, os.fspath(plan), numbers)

    def resume(self, folder: str | Path) -> dict[str, Any] | None:
        """Continues training from a checkpoint and returns its `more`; None if the folder holds none yet.

        Call it after the optimizer, its schedulers and the loader are made, as in the run that saved. Raises
        EngineError as `load` does, and if one of these is missing, or the loader's data are others.
        """
        with self.world.enter():
            self.since = f"since it was loaded from `{folder}`"
            return self._checkpoints.resume(folder)

    def close(self) -> None:
        """Waits for the weights that other ranks updated last, and for a running save. Raises EngineError if that
        failed."""
        self.weights.settle()
        self._checkpoints.close()

    # -- what ranks do together ----------------------------------------------------------------------------------------

    def watch_gradients(self, watch: Callable[[], None]) -> None:
        """Calls `watch` in each step, when the gradients are complete and the optimizer has not stepped yet."""
        self.ending.watch = watch

    def record(self) -> Recorder:
        """Starts to record when each task runs."""
        self.training.runner.recorder = Recorder(self.device, self.world, f"role_{self.training.name}.py")
        return self.training.runner.recorder

    def now(self) -> tuple[int, str]:
        """The current step and task; called by another thread."""
        doing = self.world.compiling or self.rank_programs.running.runner.doing
        return self.micro_steps, doing or "its training script"

    @property
    def compiled(self) -> dict[str, Any]:
        """How many runs of operators torch has `compiled` on this rank, and `loaded` from its cache, in how many
        seconds (`took_s`); and of what runs operator by operator, at least for some sizes, why (`refused`)."""
        there = [run for run in self.world.runs if run.is_compiled]
        loaded = sum(run.loaded for run in there)
        refused = {line: reason for run in self.world.runs for line, reason in run.refused.items()}
        took_s = sum(run.took_s for run in self.world.runs)
        return {"compiled": len(there) - loaded, "loaded": loaded, "took_s": took_s, "refused": refused}

    def waits(self) -> str:
        """The communication for which this rank waits, with the plan's line; "" if none. Called by another thread."""
        return self.rank_programs.running.waits() or ("a vote of all ranks" if self.control.waits else "")


def _placed(
    programs: Programs, world: World, device: torch.device, half: torch.dtype | None
) -> tuple[Weights, dict[str, Piece]]:
    """This rank's weights, and for each of them the part of the whole that it is."""
    table = programs.training.table
    role = role_of(table, world)
    if role is None:
        tie_groups(table, world)
        return Weights([], {}, world), {}
    with torch.no_grad():
        weights = weights_of(table, role, world, programs.state, device, half)
    return weights, {p.name: p for p in pieces_of(role.weights, role, world)}
