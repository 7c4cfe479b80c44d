"""A request to stop training: a signal that a scheduler sends before it takes the machine away.

The rank finishes its step. All ranks hear of it there, whichever was asked, so that they save the same step.
"""

import os
import signal
from types import FrameType

from ..errors import EngineError

ASKING = (signal.SIGTERM, signal.SIGUSR1)  # what schedulers send


class StopRequest:
    """Whether this process was asked to stop. A second signal of a kind ends it at once."""

    def __init__(self) -> None:
        self.is_asked = False

    def listen(self, *signals: signal.Signals) -> None:
        """Takes these signals as requests from now on. Raises EngineError outside of the main thread, where Python
        handles none."""
        for number in signals:
            try:
                signal.signal(number, self._ask)
            except ValueError as error:
                raise EngineError(f"signals cannot be taken here: {error}", "call it in the main thread") from None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.is_asked = True
