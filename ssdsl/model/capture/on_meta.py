"""Runs and captures a forward whose weights have no numbers.

A capture has to see the CPU as device: `torch.autocast` casts nothing on meta, and a forward may ask where its tensors
are. So the weights are torch's *fake* tensors during capture, as torch.export makes them of any weights. When such a
forward is only run, the tensors that it makes without naming a device are on meta like its weights.
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
    """Makes tensors on the meta device, where the module's weights are: `torch.arange(len(x))` beside `x`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors() - OF_DATA and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)


def device_of(model: Model) -> contextlib.AbstractContextManager[Any]:
    """A context in which a model's forward makes tensors on the device of its weights."""
    return _OnMeta() if model.is_meta else contextlib.nullcontext()


@contextlib.contextmanager
def captured_batch(model: Model) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors of the first batch; within it, a model's weights on meta are fake tensors on the CPU.

    The caller restores the module's tensors afterwards (`attributes_kept`).
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
    """Converts a fake tensor to the meta device; returns any other value unchanged."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
