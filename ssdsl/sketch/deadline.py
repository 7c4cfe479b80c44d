"""The time that a search may take, with a guess at how long the next simulation and the proofs at the end will take."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ssdsl.sketch.result import Tried
from ssdsl.sketch.simulations import setting_key

T = TypeVar("T", bound=Tried | None)
LATEST = 3  # simulations, the longest of which says how long the next one may take


class TimeIsUp(Exception):
    """The next simulation, and the proofs of the plans that are shown, would end too late."""


@dataclass(slots=True)
class Deadline:
    """The end of a search, and the seconds of its simulations."""

    until: float = float("inf")
    _began: float = 0.0
    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))  # seconds of simulations
    _seconds: dict[Hashable, float] = field(default_factory=dict)  # by setting
    _proofs_s: float = 0.0

    def begin(self, seconds: float) -> None:
        """Starts the clock."""
        self._began = time.monotonic()
        self.until = self._began + seconds

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def check(self) -> None:
        """Raises TimeIsUp if a simulation that takes as long as the longest of the last few, and the proofs of what is
        shown, would end too late."""
        if time.monotonic() + max(self._latest, default=0.0) + self._proofs_s > self.until:
            raise TimeIsUp

    def timed(self, simulated: Callable[[], T]) -> T:
        """What this simulates next; notes its seconds. Raises TimeIsUp."""
        self.check()
        began, tried = time.monotonic(), simulated()
        if tried is not None:
            self.took(tried, time.monotonic() - began)
        return tried

    def took(self, tried: Tried, seconds: float) -> None:
        """Notes how long a simulation took."""
        self._latest.append(seconds)
        self._seconds[setting_key(tried)] = seconds

    def expect_proofs(self, of: Iterable[Tried], believed: set[Hashable]) -> None:
        """Notes that these will be proved at the end, which takes no longer than their simulations did."""
        keys = dict.fromkeys(map(setting_key, of))
        self._proofs_s = sum(self._seconds.get(key, 0.0) for key in keys if key not in believed)
