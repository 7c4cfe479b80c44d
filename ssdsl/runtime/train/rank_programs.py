"""An engine's programs, as one rank runs them, and the parts of global batches that they get.

A batch on every rank is checked, and compared with that of the other ranks, before any of them begins a step.
"""

import difflib
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ..data.batch import Batch, Tensors, another_batch, compare, mark_of, named
from ..data.checked_batch import CheckedBatch
from ..errors import EngineError
from ..program.program import CompiledProgram
from ..ranks.world import World
from ..step.rank_program import RankProgram
from ..step.rank_setup import join_world
from ..step.weights import Weights
from .programs import Programs, Variant


class RankPrograms:
    """The program of training and others, which are compiled when they are first needed. `running` is the one that runs
    or ran last.

    `step` gives the number of the engine's step. Called by all ranks alike.
    """

    def __init__(
        self, programs: Programs, world: World, device: torch.device, weights: Weights, step: Callable[[], int]
    ) -> None:
        self.programs, self.world, self.device, self.weights = programs, world, device, weights
        self.step, self.control = step, world.control
        self.training = self.running = self._made(programs.training)
        self._others: dict[Variant, RankProgram] = {}
        self._compared = False  # whether the ranks have compared their inputs

    def _made(self, program: CompiledProgram) -> RankProgram:
        join_world(program.table, self.world)
        return RankProgram(program, self.world, self.device, self.weights, self.programs.state)

    def all(self) -> Iterator[RankProgram]:
        """All programs of this rank so far."""
        yield self.training
        yield from self._others.values()

    def of(self, variant: Variant) -> RankProgram:
        """This rank's program for a variant, compiled when it is first needed."""
        if variant == Variant("train"):
            return self.training
        if variant not in self._others:
            with self.world.enter():
                share = self._made(self._other(variant))
                if variant.kind == "train":
                    with self.together():
                        share.check_fits(self.training)
            self._others[variant] = share
        return self._others[variant]

    def _other(self, variant: Variant) -> CompiledProgram:
        """A program other than that of training; if it is for batches of other sizes, its errors say so."""
        described = self.training.feed.described(variant.sizes)
        try:
            return self.programs.other(variant, described)
        except EngineError as error:
            if not variant.sizes:
                raise
            reason = f"there is no program for {described}: {error.reason}"
            change = error.help or "leave such batches out, or pad them to the example's sizes"
            raise EngineError(reason, change) from error

    def known_loss(self, name: str | None) -> str | None:
        """The name of one of several losses, or None for their sum. Raises EngineError for another name."""
        known = self.programs.losses
        if name is None or name in known:
            return name
        if not known:
            change = 'name the losses when the engine is made: `ssdsl.engine(..., loss=("critic", "generator"))`'
            raise EngineError(f"there is no loss `{name}`: the model has one loss", change)
        close = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean `{close[0]}`? " if close else ""
        raise EngineError(f"there is no loss `{name}`", f"{meant}the losses are {', '.join(known)}")

    # -- batches -------------------------------------------------------------------------------------------------------

    def find(self, variant: Variant, batch: Batch) -> tuple[RankProgram, Tensors]:
        """The program of a variant for a batch, and this rank's part of the batch."""
        if isinstance(batch, CheckedBatch):  # the loader has checked it, on all ranks
            share = self.of(replace(variant, sizes=self.training.feed.differing(batch.feed.sizes)))
            batch.check()
            if share.feed is batch.feed:
                return share, batch.part_for(share.feed)
            with self.together():  # this program may need other parts, which some ranks load now
                return share, batch.part_for(share.feed)
        whole: Tensors = {}
        feed = self.training.feed
        sizes, error = dict(feed.sizes), None
        try:
            whole = feed.cast(named(batch, [*feed.shapes]))
            sizes = feed.sizes_of(whole)
            if empty := [axis for axis, n in sizes.items() if not n]:
                what = "samples" if empty[0] == feed.batch else f"`{empty[0]}`"
                raise EngineError(f"the batch has no {what}", "leave out batches that are empty")
        except EngineError as found:
            error = str(found)
        self._agree(sizes, mark_of(whole) if error is None else 0, error)
        if not self._compared:
            self._compared = True
            compare(whole, self.control)
        share = self.of(replace(variant, sizes=feed.differing(sizes)))
        return share, {name: piece.of(whole[name]) for name, piece in share.inputs.items()}

    def _agree(self, sizes: dict[str, int], mark: int, error: str | None) -> None:
        """Raises EngineError on all ranks if one has an error, or another batch: of other sizes, or with another
        mark."""
        self._begins()
        mine = json.dumps([sizes, mark]).encode()
        if self.control.vote(error, alike=zlib.crc32(mine)):
            return
        feed, told = self.training.feed, [json.loads(text) for text in self.control.all_gather(mine)]
        first, its = told[0]
        for rank, (given, other) in enumerate(told):
            if given != first:
                axes = [axis for axis in first if given[axis] != first[axis]]
                here, there = (feed.described(tuple((a, n[a]) for a in axes)) for n in (given, first))
                reason = f"rank {rank} was given {here}, and rank 0 {there}"
                raise EngineError(reason, "give all ranks the same global batch")
            if other != its:
                raise another_batch(rank)

    # -- what ranks do together ----------------------------------------------------------------------------------------

    def _begins(self) -> None:
        self.running.runner.doing = f"the start of step {self.step()}"

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context: an error of one rank inside it is raised on all ranks."""
        self._begins()
        with self.control.together():
            yield
