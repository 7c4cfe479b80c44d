"""A plan under some values of its params, with its simulated step."""

from collections.abc import Mapping

from ssdsl.record import Record
from ssdsl.simulate.report import Report
from ssdsl.sketch.by import By
from ssdsl.text.diagnostic import Diagnostic


class Setting(Record):
    """A plan under some values of its params: with its simulated step, or the reason why it was refused."""

    params: Mapping[str, int]
    report: Report | None = None
    refused: Diagnostic | None = None
    by: By = By.DEVICES

    @property
    def over(self) -> int:
        """The bytes that the fullest device lacks."""
        return self.report.over_bytes if self.report else 0

    @property
    def filled(self) -> float | None:
        """The share of its memory that the fullest device needs; None if no device has a known capacity."""
        shares = [s for d in self.report.devices if (s := d.capacity_share) is not None] if self.report else []
        return max(shares, default=None)

    @property
    def figures(self) -> tuple[float | None, ...]:
        """Step time, bubble, share of exposed communication, peak memory, its share of the capacity, traffic of all
        devices, number of devices, and device-seconds."""
        if (report := self.report) is None:
            return (None,) * 8
        traffic = sum(t.size_bytes for t in report.traffic)
        shares = report.bubble, report.exposed_share
        return report.step_s, *shares, report.peak_bytes, self.filled, traffic, self.devices, self.device_s

    @property
    def devices(self) -> int:
        """The number of devices that the plan takes."""
        return self.report.size if self.report else 0

    @property
    def device_s(self) -> float:
        """Device-seconds of a step. All settings compute the same step, so the lowest is the best use of devices."""
        return self.report.step_s * self.devices if self.report else 0.0

    @property
    def price(self) -> float | None:
        """What a step costs; None if that is not known."""
        return self.report.price if self.report else None

    @property
    def value(self) -> float:
        """What settings are ranked by: the lowest is the best."""
        return self.price or 0.0 if self.by is By.COST else self.device_s

    @property
    def words(self) -> str:
        """`T=2 M=8`."""
        return " ".join(f"{name}={value}" for name, value in self.params.items())


def best_of(settings: tuple[Setting, ...]) -> Setting | None:
    """The setting that fits and takes the fewest device-seconds; among equals the shortest step, then the least
    memory."""
    fit = [s for s in settings if s.report and not s.over]
    return min(fit, key=lambda s: (s.device_s, s.figures[0], s.figures[3]), default=None)
