"""A forward on the meta device: what it makes without naming a device is there too."""

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from ssdsl.model.source import Model

OF_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_file}  # these have numbers, which the graph keeps


class _OnMeta(TorchFunctionMode):
    """Makes tensors on the meta device, as the module's weights are there: `torch.arange(len(x))` beside `x`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() - OF_DATA and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)


def device_of(model: Model) -> contextlib.AbstractContextManager[Any]:
    """Within it, a model's forward makes tensors where its weights are."""
    return _OnMeta() if model.is_meta else contextlib.nullcontext()
