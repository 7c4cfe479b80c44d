"""A row: a name, what was measured, what the simulator predicts, and their unit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    name: str
    measured: float
    predicted: float
    unit: str

    @property
    def error(self) -> float:
        """The prediction's, as a share of what was measured."""
        return self.predicted / self.measured - 1
