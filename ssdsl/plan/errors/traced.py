"""What diagnostics of the interpreter have in common: the calls that led to them, and an earlier statement."""

from dataclasses import dataclass

from ssdsl.text.source import Span

Places = tuple[tuple[Span, str], ...]


@dataclass(frozen=True, kw_only=True)
class Traced:
    """`calls` are the places of the calls through which the mistake was reached, the innermost first."""

    calls: tuple[Span, ...] = ()

    def others(self) -> Places:
        """The further places that a diagnostic shows."""
        return tuple((span, "called here") for span in self.calls[:3])


@dataclass(frozen=True, kw_only=True)
class Conflict(Traced):
    """A mistake that two places make together: `first` is the earlier one, and `earlier` what was said there."""

    first: Span | None = None

    def earlier(self) -> str:
        raise NotImplementedError

    def others(self) -> Places:
        first = ((self.first, self.earlier()),) if self.first else ()
        return (*first, *super().others())
