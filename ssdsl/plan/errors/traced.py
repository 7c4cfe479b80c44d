"""Base classes for diagnostics of the interpreter: with the calls that led to a mistake, or with an earlier
statement."""

from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span

Places = tuple[tuple[Span, str], ...]


class Traced(Diagnostic, kw_only=True):
    """A mistake that was reached through `calls`: their places, the innermost first."""

    calls: tuple[Span, ...] = ()

    def others(self) -> Places:
        """The further places that a diagnostic shows."""
        return tuple((span, "called here") for span in self.calls[:3])


class Conflict(Traced, kw_only=True):
    """A mistake that two places make together: `first` is the earlier one, `earlier` the label there."""

    earlier: ClassVar[str]
    first: Span | None = None

    def others(self) -> Places:
        first = ((self.first, self.text(self.earlier)),) if self.first else ()
        return (*first, *super().others())
