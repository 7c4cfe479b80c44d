"""The module's own exceptions, which have nothing to do with its capture."""

from ssdsl.model.capture.errors import FailsInHalf
from ssdsl.model.capture.on_meta import device_of
from ssdsl.model.capture.preserve import module_kept, quiet
from ssdsl.model.capture.source_line import own_span, raised
from ssdsl.model.checks.errors import ForwardFailed
from ssdsl.model.load.model import Model, in_float32


def own_failure(model: Model, phase: str, error: Exception) -> ForwardFailed | FailsInHalf:
    """The diagnostic for an exception of the module: its type, its message and the user's line. It blames the precision
    if the module runs in float32."""
    first, _, rest = str(error).strip().partition("\n")
    name, span = type(error).__name__, own_span(raised(error))
    said = f"{name}: {first}" if first else name
    if model.precision is not None and raised_by(in_float32(model), backward=True) is None:
        return FailsInHalf(span, model.name, model.precision, said, rest)
    return ForwardFailed(span, phase, model.name, said, rest)


def raised_by(model: Model, *, backward: bool = False) -> Exception | None:
    """The exception that a model raises by itself, in forward or also in backward; None if it raises none."""
    try:
        with quiet(), module_kept(model.module), device_of(model):
            loss = model.compute(model.example())
            if backward:
                loss.backward()
    except Exception as error:  # the user's code may raise anything
        return error
    return None
