"""Changes an engine's plan between two steps: the state goes from where one plan has it to where the other one does.

Nothing is read from a disk. The engine, its optimizers and their schedulers stay the objects that a script knows.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoints.held import HeldCheckpoint
from ..errors import EngineError
from ..ranks.world import World
from .optimizer import Optimizer
from .programs import Programs
from .training_state import content, restore

if TYPE_CHECKING:
    from .engine import Engine

OF_A_PLAN = ("programs", "world", "table", "precision", "weights", "pieces", "_owners", "rank_programs", "training")


def replan(engine: "Engine", plan: str, params: Mapping[str, int] | None) -> int:
    """See `Engine.replan`."""
    if engine.ending.accumulated:
        reason = "gradients are added up since the last update, and they lie as the plan has them"
        raise EngineError(reason, "change the plan behind a step that updates")
    engine.weights.settle()
    programs = engine.programs.replanned(plan, params)
    needed = programs.training.table.world_size
    if needed != engine.world_size:
        raise EngineError(
            f"the plan is for {needed} devices, and the number of processes is {engine.world_size}",
            "set other parameters of the plan: `engine.replan(plan, params={...})`",
        )
    old, still = engine.ending, engine._checkpoints.untrained()
    kept = [*engine.held(), *(still if engine.rank == 0 else ())]
    before = HeldCheckpoint(content(kept, old, {}), engine.world)
    new = _fresh(engine, programs)
    for optimizer in old.optimizers:
        new.ending.optimizers.add(_like(optimizer, new))
    still = new._checkpoints.untrained()
    mine = [*new.held(), *(still if engine.rank == 0 else ())]
    restore(before, mine, new.ending, new.control, strict=True, cast=False)
    new.complete()
    for was, is_now in zip(old.optimizers, new.ending.optimizers, strict=True):
        _take_over(was, is_now)
    new.ending.request, new.ending.is_stopping, new.ending.watch = old.request, old.is_stopping, old.watch
    new.ending.scaler, new.ending.options = old.scaler, old.options
    new.rank_programs.step = lambda: engine.micro_steps
    for name in OF_A_PLAN:
        setattr(engine, name, getattr(new, name))
    engine.ending, engine.control = new.ending, new.control
    engine.since = f"since the plan is `{plan}`"
    for number, loader in enumerate(engine._checkpoints.loaders):
        loader.refeed(goes_on=engine._checkpoints.has_fed(number))
    homes = new.ending.homes
    return before.moved_bytes + (homes.moved_bytes if homes is not None else 0)


def _fresh(engine: "Engine", programs: Programs) -> "Engine":
    """An engine for the new plan, on the same ranks."""
    world = World(engine.world.transport, mode=engine.world.mode, blocking=engine.world.blocking)
    return type(engine)(programs, world, engine.device, seed=engine.seed, background=False)


def _like(optimizer: Optimizer, engine: "Engine") -> Optimizer:
    """An optimizer of the same kind for the weights where they are now."""
    made, weights = optimizer.made, engine.ending.optimized
    with engine.rank_programs.together():
        return Optimizer(made.make, weights, made.names, made.groups, made.options, made.sparse, engine.by_matrix())


def _take_over(was: Optimizer, now: Optimizer) -> None:
    """Gives the optimizer that the script knows, and its schedulers, the weights and the state where they are now."""
    for group, new in zip(was.torch.param_groups, now.torch.param_groups, strict=True):
        group["params"] = new["params"]
    state: dict[Any, Any] = dict(now.torch.state)
    was.torch.state.clear()
    was.torch.state.update(state)
    now.torch = was.torch
