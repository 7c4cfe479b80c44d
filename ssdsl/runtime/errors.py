"""What a training script is told when it asks for what cannot be: the reason, and the change to make."""

import sys
from collections.abc import Callable
from typing import Any


class EngineError(Exception):
    """A mistake of the user's, or of the machine's. `help` is the change to make.

    >>> print(EngineError("`runs/a` has no checkpoint", "name a folder that `engine.save` wrote"))
    `runs/a` has no checkpoint
      help: name a folder that `engine.save` wrote
    """

    def __init__(self, reason: str, help: str = "") -> None:
        super().__init__(reason, help)
        self.reason, self.help = reason, help

    def __str__(self) -> str:
        return f"{self.reason}\n  help: {self.help}" if self.help else self.reason


def print_plainly(rank: int, at_end: Callable[[], None]) -> None:
    """From now on an EngineError that ends the script is printed without a traceback; `at_end` runs after any error."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, EngineError):
            print(f"rank {rank}: error: {error}", file=sys.stderr, flush=True)
        else:
            before(kind, error, trace)
        at_end()

    sys.excepthook = hook
