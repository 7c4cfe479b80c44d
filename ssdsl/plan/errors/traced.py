"""Base classes for diagnostics of the interpreter: with the calls that led to a mistake, or with an earlier
statement."""

from dataclasses import dataclass

from ssdsl.text.source import Span

Places = tuple[tuple[Span, str], ...]


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A mistake that was reached through `calls`: their places, the innermost first."""

    calls: tuple[Span, ...] = ()

    def others(self) -> Places:
        """The further places that a diagnostic shows."""
        return tuple((span, "called here") for span in self.calls[:3])


@dataclass(frozen=True, kw_only=True)
class Conflict(Traced):
    """A mistake that two places make together: `first` is the earlier one, `earlier()` the words for what was said
    there."""

    first: Span | None = None

    def earlier(self) -> str:
        raise NotImplementedError

    def others(self) -> Places:
        first = ((self.first, self.earlier()),) if self.first else ()
        return (*first, *super().others())
