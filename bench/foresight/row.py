"""One published or measured number beside the one that the simulator says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """`calibrates`: the constants of a device kind were chosen with this row in sight."""

    name: str
    measured: float
    predicted: float
    unit: str
    calibrates: bool = False

    @property
    def error(self) -> float:
        """As a part of what was measured; positive where the simulator says more."""
        return self.predicted / self.measured - 1
