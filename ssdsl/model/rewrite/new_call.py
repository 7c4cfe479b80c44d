"""Makes the calls that a rewrite puts in place of a captured one."""

from collections.abc import Generator

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture, kind_of
from ssdsl.model.graph import Ref


def new_call(
    call: CapturedCall, word: str, capture: Capture, tensor: Tensor, target: torch._ops.OpOverload, *args: object
) -> Generator[CapturedCall, None, Ref]:
    """Yields one more call in place of this one; returns the reference to its result."""
    name = temporary(call, word, capture, tensor)
    yield replace_call(call, target, args, name)
    return Ref(name)


def replace_call(
    call: CapturedCall, target: torch._ops.OpOverload, args: tuple[object, ...], name: str
) -> CapturedCall:
    """The call of another operator at the same place in the model."""
    return CapturedCall(name, kind_of(target), target, args, {}, call.path, call.source, (name,))


def temporary(call: CapturedCall, word: str, capture: Capture, tensor: Tensor) -> str:
    """The name of a new value made in place of a call; registers its tensor."""
    name = f"{call.name}_{word}"
    capture.tensors[name] = tensor
    return name
