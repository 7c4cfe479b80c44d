"""A device without kernels and numbers, and the notes of what a rank's step does with it.

Tensors of the device are torch's on `meta`: they have shapes, and memory that views share, but no numbers. All others
are the host's. Two modes see each operator before it runs, and each call of torch that makes a tensor of Python's
numbers:

| event | on a GPU | here |
|---|---|---|
| an operator reads a number, or has a result whose size depends on numbers | the host waits for all that was started | noted; the answer is that for zeros |
| a copy between host and device that blocks | the same | noted; a copy from the device is zeros |
| the host reads the numbers of rows of experts | the same | noted; the first expert has one row |
| an operator has tensors of both, other than host tensors without axes | an error | noted; the result is on the device |

torch's tags say which operators read numbers. PyTorch's PrivateUse1 would be a device type of its own; but a process
registers it for all that follows, and autograd must know of it before the first backward of the process.
"""  # noqa: E501

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ssdsl.record import Record
from ssdsl.runtime.ranks.numbers import reading
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.line_mode import CodeLine, LineMode

DEVICE = torch.device("meta")
COPIES = ("aten::_to_copy", "aten::copy_")
INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")  # they read masks
SPELT = {"_local_scalar_dense": "item", "_to_copy": "to"}  # torch's operators as users call them
READS = ("aten::_linalg_check_errors",)  # without a tag
TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
BY_INDEX = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


class DryEvent(StrEnum):
    """What a step does that it must not do, or not often."""

    WAITS = "waits"  # the host for the device
    ROUTES = "routes"  # the host waits for the numbers of rows of experts
    MIXES = "mixes"  # an operator the tensors of device and host


class Note(Record):
    """An event of a step: torch's name of the operator, and the line of the role's file behind it, or what the engine
    was doing."""

    event: DryEvent
    operator: str
    line: CodeLine | None
    doing: str


class DryDevice(LineMode):  # type: ignore[no-untyped-call]
    """The device of one rank, whose code is in the file; `doing` says what the rank does. `notes` counts events."""

    def __init__(self, world: World, file: str, doing: Callable[[], str | None]) -> None:
        super().__init__(world, file)
        self.doing = doing
        self.notes: Counter[Note] = Counter()

    @contextmanager
    def following(self) -> Iterator[None]:
        """A context for a step of the rank."""
        before, self.world.tracer = self.world.tracer, self
        try:
            with reading(self._rows), _PythonNumbers(self), self:
                yield
        finally:
            self.world.tracer = before

    def note(self, event: DryEvent, operator: str) -> None:
        """Notes an event of the line that runs now."""
        line = self.line()
        self.notes[Note(event, SPELT.get(operator, operator), line, "" if line else self.doing() or "")] += 1

    def _rows(self, counts: Sequence[torch.Tensor]) -> list[int]:
        if any(x.is_meta for x in counts):
            self.note(DryEvent.ROUTES, "tolist")
        return [int(n == 0) for x in counts for n in range(x.numel())]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.running()
        schema, name = func._schema, func._schema.name.removeprefix("aten::")
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if schema.name in COPIES:
            source, is_to_device = _way(args, kwargs)
            if source.is_meta == is_to_device:
                return func(*args, **kwargs)
            if not (is_to_device and _is_non_blocking(args, kwargs)):
                self.note(DryEvent.WAITS, name)
            return func(*args, **kwargs) if is_to_device else _with_zeros(func, args, kwargs)
        if not any(x.is_meta for x in tensors):
            return func(*args, **kwargs)
        if any(not x.is_meta and x.dim() for x in tensors):
            self.note(DryEvent.MIXES, name)
        if _reads_numbers(func, args, kwargs):
            self.note(DryEvent.WAITS, name)
            return args[0] if schema.is_mutable else _on_device(_with_zeros(func, args, kwargs))
        return func(*args, **kwargs) if all(x.is_meta for x in tensors) else _mixed(func, args, kwargs)


class _PythonNumbers(TorchFunctionMode):
    """Notes copies of Python's numbers to the device, which no operator shows."""

    def __init__(self, device: DryDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in OF_NUMBERS and result.is_meta and not isinstance(args[-1], torch.Tensor):
            self.device.note(DryEvent.WAITS, func.__name__)
        if func in BY_INDEX and args[0].is_meta and _has_list(args[1]):
            self.device.note(DryEvent.WAITS, "an index that is a list")
        return result


def _has_list(index: Any) -> bool:
    return any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,)))


def _way(args: Any, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, bool]:
    """The tensor that a call copies, and whether the copy is on the device."""
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        return args[1], args[0].is_meta
    target = kwargs.get("device")
    return args[0], args[0].is_meta if target is None else torch.device(target) == DEVICE


def _is_non_blocking(args: Any, kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))


def _reads_numbers(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call reads numbers of its tensors on the host, or its results' sizes depend on them."""
    name = func._schema.name
    if name in INDEXES:
        return any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    return name in READS or not TAGS.isdisjoint(func.tags)


def _with_zeros(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The result of a call for tensors that are zero, on the host."""

    def zeros(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), dtype=x.dtype).expand(x.shape) if x.is_meta else x

    args, kwargs = tree_map_only(torch.Tensor, zeros, (args, dict(kwargs)))
    return func(*args, **kwargs)


def _mixed(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The result of a call with tensors of both, as if all were the device's. One that changes the host's tensors
    changes nothing."""
    result = func(*_on_device(args), **_on_device(dict(kwargs)))
    return args[0] if func._schema.is_mutable else result


def _on_device(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda x: x.to(DEVICE), values)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
