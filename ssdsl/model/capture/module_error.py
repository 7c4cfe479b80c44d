"""The module's own exceptions, which have nothing to do with its capture."""

from ssdsl.model.capture.errors import FailsInHalf
from ssdsl.model.capture.on_meta import device_of
from ssdsl.model.capture.preserve import module_kept
from ssdsl.model.capture.source_line import own_span, raised
from ssdsl.model.checks.errors import ForwardFailed
from ssdsl.model.load.model import Model, in_float32


def own_failure(model: Model, phase: str, error: Exception) -> ForwardFailed | FailsInHalf:
    """The diagnostic for an exception of the module: its type, its message and the user's line. It blames the precision
    if the module runs in float32."""
    first, _, rest = str(error).strip().partition("\n")
    name, span = type(error).__name__, own_span(raised(error))
    said = f"{name}: {first}" if first else name
    if model.precision is not None and _trains(in_float32(model)):
        return FailsInHalf(span, model.name, model.precision, said, rest)
    return ForwardFailed(span, phase, model.name, said, rest)


def _trains(model: Model) -> bool:
    """Whether a model runs forward and backward by itself."""
    try:
        with module_kept(model.module), device_of(model):
            model.compute(model.example()).backward()
    except Exception:  # the user's code may raise anything
        return False
    return True
