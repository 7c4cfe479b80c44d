"""A forward whose weights have no numbers: on the meta device, or as torch.export sees it, on the CPU it will run on.

A capture has to see the device: `torch.autocast` casts nothing on meta, and a forward may ask where its tensors are.
So the weights are torch's *fake* tensors while it is captured, as torch.export makes of any model's weights. Elsewhere
what a forward makes without naming a device is on meta too.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import change_attributes, with_tensors

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


@contextlib.contextmanager
def captured_batch(model: Model) -> Iterator[tuple[torch.Tensor, ...]]:
    """The first batch to capture the model with, whose weights are fake tensors on the CPU if they are on meta.

    Whoever calls it puts the module's tensors back (`attributes_kept`).
    """
    if not model.is_meta:
        yield tuple(model.example().values())
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    with_tensors(model.module, lambda _, tensor: fake(tensor))
    change_attributes(model.module, fake)
    yield tuple(fake(tensor.to("meta")) for tensor in model.batches[0].values())


def without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor as one on the meta device; any other as it is."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
