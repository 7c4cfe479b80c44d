"""Runs a call on fake tensors: they have no numbers, and torch runs the kernels that a CPU has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ssdsl.model.capture.overloads import as_torch, overload
from ssdsl.model.capture.preserve import quiet
from ssdsl.model.graph import Graph, Operator, Value, replace_refs
from ssdsl.model.memory.storage import strides_in
from ssdsl.model.target import Target, TorchWord
from ssdsl.record import Record

Shape = tuple[int, ...]
TORCHS = "ssdsl::banded_attention"  # no function of the runtime: torch's own attention, and how far it reaches
FAKE = FakeTensorMode()
FAKE.cache_enabled = False  # each call has sizes of its own: nothing asks for a result again


@contextmanager
def fake_tensors(target: Target | None = None, *, like_cpu: bool = True) -> Iterator[None]:
    """Makes tensors without numbers for a call, with which torch runs the kernels that a CPU has. Not `like_cpu` are
    meta tensors, which take a fifth of the time. Functions of the runtime get these: they skip the numbers of them.
    Errors of calls are not logged, nor do calls print."""
    if not like_cpu or (target is not None and target.name.startswith("ssdsl::") and target.name != TORCHS):
        with torch.device("meta"):
            yield
        return
    with quiet(), FAKE:
        yield


class TensorSpec(Record):
    """The shape, strides (in elements) and dtype of a tensor, and whether it requires a gradient."""

    shape: Shape
    strides: Shape
    dtype: str
    requires_grad: bool

    def empty(self) -> torch.Tensor:
        """A tensor like it."""
        tensor = torch.empty_strided(self.shape, self.strides, dtype=getattr(torch, self.dtype))
        return tensor.requires_grad_(self.requires_grad)


def learns(value: Value) -> bool:
    """Whether a tensor of a call requires a gradient."""
    return value.differentiable and value.dtype.startswith(("float", "bf", "complex"))


def spec_of(name: str, graph: Graph) -> TensorSpec:
    """The spec of a value on one device."""
    value = graph.values[name]
    return TensorSpec(value.shape, graph.storages[name].strides, value.dtype, learns(value))


def empty(value: Value, strides: Shape | None = None) -> torch.Tensor:
    """A tensor like a value."""
    dense = strides_in(range(len(value.shape)), value.shape)
    return TensorSpec(value.shape, dense if strides is None else strides, value.dtype, learns(value)).empty()


def results_of(operator: Operator, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """As `run`: the results of an operator on tensors that are given by the names of their values."""
    target, *args = operator.args
    return run(target, tuple(args), operator.kwargs, tensors)


def run(
    target: Target, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], tensors: Mapping[str, torch.Tensor]
) -> tuple[Any, ...]:
    """The results of a call, in a context that makes tensors without numbers; raises the operator's errors."""
    result = overload(target)(*filled(args, tensors), **dict(filled(kwargs, tensors)))
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def run_saving(
    call: Callable[[Mapping[str, torch.Tensor]], tuple[Any, ...]], given: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], dict[int, torch.Tensor]]:
    """The results of a call on tensors, of which `"0"` is the name of the first, and the tensors that autograd saves of
    it, by their memory: views of one tensor count once."""
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.setdefault(memory_of(tensor), tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return call({str(i): t for i, t in enumerate(given)}), saved


def filled(item: Any, tensors: Mapping[str, Any]) -> Any:
    """An argument of an operator with its references replaced by tensors, or by other items of `tensors`."""
    return replace_refs(item, tensors.__getitem__, _on_cpu)


def _on_cpu(item: Any) -> Any:
    is_device = isinstance(item, TorchWord) and item.kind == "device"
    return torch.device("cpu") if is_device else as_torch(item)


def memory_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's memory, as long as the tensor lives."""
    return int(tensor.untyped_storage()._cdata)
