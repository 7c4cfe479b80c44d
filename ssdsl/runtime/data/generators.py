"""Seeds the global random generators of torch, numpy and random while the user's data code runs, and restores them
after.

So a sample depends on a key alone: not on the plan, the workers, or where a run was resumed.
"""

import hashlib
import random
import sys
from types import TracebackType
from typing import Any

import torch

States = tuple[torch.Tensor, Any, Any]


class Generators:
    """A context with random generators of its own: inside, the global ones are seeded by a key, or continue where the
    last use ended.

    >>> own, before = Generators("data", 0), random.getstate()
    >>> with own:
    ...     first = random.random(), random.random()
    >>> with Generators("data", 0):
    ...     once = random.random()
    >>> once == first[0], random.getstate() == before
    (True, True)
    """

    def __init__(self, *key: object) -> None:
        self.key = key
        self.own: States | None = None
        self.outer: States | None = None
        self.start: States | None = None

    def __enter__(self) -> "Generators":
        self.outer = _states()
        if self.own is None:
            self.seed(*self.key)
        else:
            _restore(self.own)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.own = _states()
        assert self.outer is not None
        _restore(self.outer)

    def seed(self, *key: object) -> None:
        """Seeds the generators by another key; called inside the context."""
        number = number_of(*key)
        torch.default_generator.manual_seed(number)
        random.seed(number)
        if (numpy := _numpy()) is not None:
            numpy.random.seed(number % 2**32)

    def mark(self) -> None:
        """Remembers the state of the generators, for `has_drawn`."""
        self.start = _states()

    def has_drawn(self) -> bool:
        """Whether a number was drawn since `mark`."""
        assert self.start is not None
        (torchs, pythons, numpys), now = self.start, _states()
        drawn = not torch.equal(torchs, now[0]) or pythons != now[1]
        return drawn or (numpys is not None and _bytes(numpys) != _bytes(now[2]))


def number_of(*key: object) -> int:
    """A seed of 63 bits computed from a key, the same in every process.

    >>> number_of(0, "epoch", 1) == number_of(0, "epoch", 1) != number_of(0, "epoch", 2)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest()) >> 1


def _states() -> States:
    numpy = _numpy()
    return torch.default_generator.get_state(), random.getstate(), numpy.random.get_state() if numpy else None


def _restore(states: States) -> None:
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    if states[2] is not None and (numpy := _numpy()) is not None:
        numpy.random.set_state(states[2])


def _bytes(state: Any) -> tuple[Any, ...]:
    """A generator state of numpy in a form that can be compared; one of its entries is an array."""
    return tuple(entry.tobytes() if hasattr(entry, "tobytes") else entry for entry in state)


def _numpy() -> Any:
    """The module numpy, if the program has imported it."""
    found = sys.modules.get("numpy")
    return found if hasattr(found, "random") else None
