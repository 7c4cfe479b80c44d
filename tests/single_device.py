"""What training on a single device computes, once for all plans of a model."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from ssdsl.ir.program import Kernels
from ssdsl.model.load.model import Model
from ssdsl.run.verify.error_growth import SingleDevice
from ssdsl.runtime.options import Training

MOST = 32
_KNOWN: OrderedDict[tuple[int, Training, Kernels], tuple[Model, SingleDevice]] = OrderedDict()


def single_device(
    model: Model, training: Training, follow: Sequence[Any] | None = None, kernels: Kernels = Kernels.EAGER
) -> SingleDevice:
    """The one that the last plans of a model were compared with: it is trained once, and once with each other last
    digits. If it follows a plan's gradients, it is that plan's alone."""
    if follow is not None:
        return SingleDevice(model, training, follow, kernels)
    key = id(model), training, kernels
    if key not in _KNOWN:
        _KNOWN[key] = model, SingleDevice(model, training, None, kernels)  # with the model, for its number
        if len(_KNOWN) > MOST:
            _KNOWN.popitem(last=False)
    _KNOWN.move_to_end(key)
    return _KNOWN[key][1]
