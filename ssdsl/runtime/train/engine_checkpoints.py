"""An engine's checkpoints: what is kept of it, and how it goes on from there, under whatever plan.

What writes and reads them is imported when it is first needed: torch.distributed.checkpoint takes most of a second.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.batch_spec import CheckedBatch
from ..data.loader import Loader
from ..errors import EngineError
from ..layout.parts import LocalTensor, untrained
from ..ranks.control import Control
from .optimizer import Optimizer
from .schedulers import schedulers_of

if TYPE_CHECKING:
    from ..checkpoints.saver import Saver
    from .engine import Engine


class EngineCheckpoints:
    """Saves and loads an engine, and the places of its loaders. Called by all ranks alike.

    `background`: saves go on in a thread of their own.
    """

    def __init__(self, engine: "Engine", background: bool) -> None:
        self.engine, self.background = engine, background
        self.loaders: list[Loader] = []
        self._fed: dict[int, CheckedBatch | None] = {}  # by a loader's number, the last batch of it that a step took

    @cached_property
    def saver(self) -> "Saver":
        """What saves; first used by all ranks alike."""
        from ..checkpoints.saver import Saver

        return Saver(Control(self.engine.world.transport), background=self.background)

    def note(self, batch: CheckedBatch) -> None:
        """Notes where a batch was taken, which may be behind where its loader is."""
        if batch.loader in self.loaders:
            self._fed[self.loaders.index(batch.loader)] = CheckedBatch({}, batch.feed, batch.loader, batch.position)

    # -- save ----------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, keep: int | None, wait: bool, more: dict[str, Any]) -> None:
        """As `Engine.save`."""
        from .training_state import content

        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise EngineError(f"keep={keep!r} keeps no checkpoint", "give how many stay, at least 1, or None for all")
        engine, state = self.engine, self.engine.programs.state
        held = [*engine.held(), *(self._untrained() if engine.rank == 0 else ())]
        facts = self._facts() | {"more": more}
        found = content(held, engine.ending.weights, self._optimizer(), facts, engine.ending.kept)
        self.saver.save(folder, engine.steps, replace(found, aliases=state.aliases), keep, wait)

    def _optimizer(self) -> Optimizer | None:
        ending = self.engine.ending
        return ending.optimizer if ending.has_optimizer else None

    def _untrained(self) -> list[LocalTensor]:
        """What of the model no rank trains or changes."""
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
        """Where a loader is for training: behind a batch, or between two epochs."""
        loader = self.loaders[number]
        return loader.state_dict(batch if loader.begun else None)

    # -- load ----------------------------------------------------------------------------------------------------------

    def load(self, folder: str | Path, strict: bool, cast: bool) -> dict[str, Any]:
        """As `Engine.load`."""
        from ..checkpoints.loader import open_on_all
        from .training_state import restore

        self.saver.wait()
        engine, state = self.engine, self.engine.programs.state
        checkpoint = open_on_all(folder, engine.control).named(state.aliases)
        still = self._untrained()
        engine.ending.kept = restore(
            checkpoint,
            [*engine.held(), *still],
            engine.ending.weights,
            self._optimizer(),
            engine.control,
            strict=strict,
            cast=cast or engine.precision is not None,
        )
        engine.complete()
        state.tensors = {**state.tensors, **{one.name: one.tensor for one in still}}
        for share in engine.shares():
            share.take_constants(state)
        return checkpoint.facts

    def resume(self, folder: str | Path) -> dict[str, Any] | None:
        """As `Engine.resume`."""
        from ..checkpoints.folder import has_checkpoint

        engine = self.engine
        if engine.control.broadcast(b"1" if has_checkpoint(Path(folder)) else b"") != b"1":
            return None
        facts = self.load(folder, strict=True, cast=False)
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
        """Raises EngineError where the run that saved had what this one has not made yet, and would go on without."""
        saved, missing = facts.get("optimizer"), []
        if saved is not None and not self.engine.ending.has_optimizer:
            missing.append("an optimizer")
        elif saved is not None and len(saved["schedulers"]) > len(schedulers_of(self.engine.optim)):
            missing.append("a learning-rate scheduler")
        if any(int(number) >= len(self.loaders) for number in facts["data"]):
            missing.append("a loader of its data")
        if missing:
            reason = f"the run that saved had {' and '.join(missing)}, which this one does not have yet"
            raise EngineError(reason, "make it before `resume`; for the weights alone there is `load`")

    def close(self) -> None:
        """Waits for a save that is under way; raises EngineError if it failed."""
        if "saver" in vars(self):
            self.saver.close()
