"""Diagnostics that know through which calls the mistake was reached."""

from dataclasses import dataclass

from ssdsl.text.source import Span


@dataclass(frozen=True, kw_only=True)
class Traced:
    """`calls` are the places of the calls, the innermost first."""

    calls: tuple[Span, ...] = ()

    def others(self) -> tuple[tuple[Span, str], ...]:
        """The further places that a diagnostic shows."""
        return tuple((span, "called here") for span in self.calls[:3])
