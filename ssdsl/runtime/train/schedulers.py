"""The learning-rate schedulers of an optimizer, which torch keeps no list of: whoever holds it and is one."""

import gc
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """Those that a loop steps, in the order in which they were made: not those inside another one."""
    found = [s for s in map(_scheduler, gc.get_referrers(optimizer)) if s is not None]
    inside = {id(s) for outer in found for s in getattr(outer, "_schedulers", ())}
    alone = {id(s): s for s in found if id(s) not in inside and getattr(s, "optimizer", None) is optimizer}
    made = [s for s in gc.get_objects() if id(s) in alone] if len(alone) > 1 else list(alone.values())
    return [alone[id(s)] for s in made]


def _scheduler(holder: Any) -> LRScheduler | None:
    """A scheduler that refers to the optimizer by itself, or by its dictionary."""
    if isinstance(holder, LRScheduler):
        return holder
    if isinstance(holder, dict):
        return next((s for s in gc.get_referrers(holder) if isinstance(s, LRScheduler) and vars(s) is holder), None)
    return None
