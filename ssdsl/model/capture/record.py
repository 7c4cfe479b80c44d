"""Records the calls of operators that a function makes, on tensors without numbers."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssdsl.record import Record


class RecordedCall(Record):
    """A call of an operator, with the tensors that it reads and makes: while it is kept, no others have their ids."""

    target: Any
    args: Any
    kwargs: dict[str, Any]
    result: Any

    @property
    def results(self) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(self.result) if isinstance(leaf, torch.Tensor)]


class CallRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records calls that return tensors, where they arrive: below autograd, that is before torch decomposes any."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[RecordedCall] = []
        self.words: dict[int, str] = {}  # names that `named` gave, by the tensors' ids
        self.elsewhere = {} if device is None else {"device": device}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given | self.elsewhere) if "device" in given else func(*args, **given)
        recorded = RecordedCall(func, args, given, result)
        if recorded.results:  # not a device, for example
            self.calls.append(recorded)
        return result


class _AsWritten(TorchFunctionMode):
    """Gives recorded calls of overloads all arguments that were written: torch leaves out those that are defaults."""

    def __init__(self, recorder: CallRecorder) -> None:
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.OpOverload):
            self.recorder.calls[-1] = RecordedCall(func, args, kwargs or {}, result)
        return result


_running: ContextVar[CallRecorder] = ContextVar("the recorder of the running rule")


@contextlib.contextmanager
def recording() -> Iterator[CallRecorder]:
    """Records calls that run inside, on meta tensors: overloads as they are written, torch's functions as they
    arrive."""
    recorder = CallRecorder("meta")
    before = _running.set(recorder)
    try:
        with torch._C._AutoDispatchBelowAutograd(), recorder, _AsWritten(recorder):
            yield recorder
    finally:
        _running.reset(before)


def named(word: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor. In generated code its name ends in `word`, where it would end in that of its operator."""
    _running.get().words[id(tensor)] = word
    return tensor
