"""An engine's checkpoints: saves the engine's state, and restores it under any plan.

torch.distributed.checkpoint is imported when it is first needed: the import takes most of a second.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.checked_batch import CheckedBatch
from ..data.loader import Loader
from ..errors import EngineError
from ..ranks.control import Control
from ..step.parts import LocalTensor, untrained
from .schedulers import schedulers_of

if TYPE_CHECKING:
    from ..checkpoints.saver import Saver
    from .engine import Engine


def is_of_run(facts: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's facts are those of a training run; they are not if it was made from a file of weights."""
    return "data" in facts


class EngineCheckpoints:
    """Saves and loads an engine, and the positions of its loaders. Called by all ranks alike.

    `background`: saves run in a thread of their own.
    """

    def __init__(self, engine: "Engine", background: bool) -> None:
        self.engine, self.background = engine, background
        self.loaders: list[Loader] = []
        self._fed: dict[int, CheckedBatch | None] = {}  # the last batch that a step took, by the loader's number

    @cached_property
    def saver(self) -> "Saver":
        """The saver; all ranks use it first at the same time."""
        from ..checkpoints.saver import Saver

        return Saver(Control(self.engine.world.transport), background=self.background)

    def note(self, batch: CheckedBatch) -> None:
        """Notes the position of a batch that a step took; its loader may be further ahead."""
        if batch.loader in self.loaders:
            self._fed[self.loaders.index(batch.loader)] = batch.without_tensors()

    def has_fed(self, loader: int) -> bool:
        """Whether a step has taken a batch of a loader, by its number."""
        return loader in self._fed

    # -- save ----------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, keep: int | None, wait: bool, more: dict[str, Any]) -> None:
        """See `Engine.save`."""
        from .training_state import content

        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise EngineError(f"keep={keep!r} keeps no checkpoint", "give how many stay, at least 1, or None for all")
        engine, state = self.engine, self.engine.programs.state
        held = [*engine.held(), *(self.untrained() if engine.rank == 0 else ())]
        facts = self._facts() | {"more": more}
        found = content(held, engine.ending, facts)
        self.saver.save(folder, engine.steps, replace(found, aliases=state.aliases), keep, wait)

    def untrained(self) -> list[LocalTensor]:
        """Copies of weights and buffers that no role uses, such as the statistics of a frozen batch norm. Rank 0 saves
        them, so that a checkpoint holds the whole model."""
        state = self.engine.programs.state
        return untrained(self.engine.table, state, dict.fromkeys(state.names.values()))

    def _facts(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "steps": engine.steps,
            "micro steps": engine.micro_steps,
            "seed": engine.seed,
            "data": {number: self._place(number, batch) for number, batch in self._fed.items()},
            "scaler": engine.scaler.state_dict() if engine.scaler is not None else None,
            "names": list(engine.programs.state.names),
            "plan": engine.programs.plan,
            "params": engine.table.params,
            "world size": engine.world_size,
            "torch": torch.__version__,
        }

    def _place(self, number: int, batch: CheckedBatch | None) -> dict[str, Any]:
        """The position of a training loader: after a batch, or between two epochs."""
        loader = self.loaders[number]
        return loader.state_dict(batch if loader.begun else None)

    # -- load ----------------------------------------------------------------------------------------------------------

    def load(self, folder: str | Path, strict: bool, cast: bool) -> dict[str, Any]:
        """See `Engine.load`."""
        from ..checkpoints.loader import open_on_all
        from .training_state import restore

        self.saver.wait()
        engine, state = self.engine, self.engine.programs.state
        checkpoint = open_on_all(folder, engine.control, state.aliases)
        still = self.untrained()
        engine.ending.accumulated = restore(
            checkpoint,
            [*engine.held(), *still],
            engine.ending,
            engine.control,
            strict=strict,
            cast=cast or engine.precision is not None,
        )
        engine.complete()
        self.take({one.name: one.tensor for one in still})
        return checkpoint.facts

    def take(self, untrained: Mapping[str, torch.Tensor]) -> None:
        """Gives tensors that no role uses other numbers, and computes the constants that depend on them."""
        state = self.engine.programs.state
        state.tensors = {**state.tensors, **untrained}
        for share in self.engine.rank_programs.all():
            share.take_constants(state)

    def resume(self, folder: str | Path) -> dict[str, Any] | None:
        """See `Engine.resume`."""
        from ..checkpoints.folder import has_checkpoint

        engine = self.engine
        with engine.control.together():
            if Path(folder).is_file():
                raise EngineError(f"`{folder}` is a file, not a folder", "name the folder that the run saves to")
        if engine.control.broadcast(b"1" if has_checkpoint(Path(folder)) else b"") != b"1":
            return None
        facts = self.load(folder, strict=True, cast=False)
        if not is_of_run(facts):
            reason = f"`{folder}` has weights, but not the steps and the data of a run to continue"
            raise EngineError(reason, "take the weights, and the optimizer's state if it is there, by `load`")
        self._check_complete(facts)
        engine.steps, engine.micro_steps, engine.seed = facts["steps"], facts["micro steps"], facts["seed"]
        if engine.scaler is not None and facts["scaler"] is not None:
            engine.scaler.load_state_dict(facts["scaler"])
        for number, state in facts["data"].items():
            self.loaders[number].load_state_dict(state)
            self._fed[number] = None
        found: dict[str, Any] = facts["more"]
        return found

    def _check_complete(self, facts: Mapping[str, Any]) -> None:
        """Raises EngineError if the saved run had an optimizer, scheduler or loader that this one has not made yet."""
        from .training_state import pairs, saved_optimizers

        saved, made, missing = saved_optimizers(facts), self.engine.ending.optimizers, []
        if len(saved) > len(made):
            missing.append("an optimizer" if len(saved) == 1 else f"{len(saved)} optimizers")
        elif any(len(f["schedulers"]) > len(schedulers_of(o.torch)) for o, f in pairs(made, saved)):
            missing.append("a learning-rate scheduler")
        if any(int(number) >= len(self.loaders) for number in facts["data"]):
            missing.append("a loader of its data")
        if missing:
            reason = f"the run that saved had {' and '.join(missing)}, which this one does not have yet"
            raise EngineError(reason, "make it before `resume`; for the weights alone there is `load`")

    def close(self) -> None:
        """Waits for a running save; raises EngineError if it failed."""
        if "saver" in vars(self):
            self.saver.close()
