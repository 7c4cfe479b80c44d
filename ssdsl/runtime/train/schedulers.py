"""Keeps track of the learning-rate schedulers of an optimizer, which torch keeps no list of.

Schedulers are recorded at their construction: the engine is imported before there is an optimizer to schedule.
Searching the heap at each save would take longer than the copy of a small model.
"""

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.optim.lr_scheduler import LRScheduler

_NUMBERS = count()
_BEFORE = LRScheduler.__dict__.get("__new__")
_MADE: WeakValueDictionary[int, LRScheduler] = WeakValueDictionary()  # in the order in which they were made


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """The schedulers of an optimizer that a loop steps, in the order of construction; those inside another one are left
    out."""
    found = [s for s in list(_MADE.values()) if getattr(s, "optimizer", None) is optimizer]
    inside = {id(s) for outer in found for s in getattr(outer, "_schedulers", ())}
    return [s for s in found if id(s) not in inside]


def _noted(kind: type[LRScheduler], *arguments: Any, **options: Any) -> LRScheduler:
    """Records a new scheduler before its `__init__`. An earlier patch of this function, such as that of another
    compiled folder, is still called."""
    made: LRScheduler = object.__new__(kind) if _BEFORE is None else _BEFORE(kind, *arguments, **options)
    _MADE[next(_NUMBERS)] = made
    return made


LRScheduler.__new__ = _noted  # type: ignore[method-assign, assignment]
