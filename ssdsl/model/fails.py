"""The module's own exceptions, which have nothing to do with its capture."""

from ssdsl.model.dropped_errors import ForwardFailed
from ssdsl.model.place import is_own, raised


def own_failure(model: str, phase: str, error: Exception) -> ForwardFailed:
    """An exception of the module by its type, its message and the user's line."""
    first, _, rest = str(error).strip().partition("\n")
    name, place = type(error).__name__, raised(error)
    return ForwardFailed(
        place.span() if place and is_own(place.file) else None,
        phase,
        model,
        f"{name}: {first}" if first else name,
        rest,
    )
