"""The emulated link between the device of a rank and its host: `--link ...,host=12GB/s`. Without it copies take the
time that they take."""

import os
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from .speed import Speed

VARIABLE = "SSDSL_LINK"  # the environment's, with the text of `--link`; processes of torchrun inherit it


@cache
def _bytes_per_s(text: str) -> float | None:
    return Speed.read(text).host_bytes_per_s if text else None


class HostLink:
    """A copy of so many bytes over the link. As a context it ends no earlier than the link carries them."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes, self.start = size_bytes, 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if (rate := _bytes_per_s(os.environ.get(VARIABLE, ""))) is not None:
            time.sleep(max(0.0, self.start + self.size_bytes / rate - time.perf_counter()))


class _Carried(threading.local):
    """When the link has carried what this rank has put on it to come beside computing."""

    until = 0.0


_carried = _Carried()


class FromHost:
    """A copy of a tensor from the host that runs beside computing; `wait` ends no earlier than the link has carried it.

    What starts in its context comes behind the copy: on a GPU both are on a stream of their own, and who waits for the
    latter waits for both.
    """

    def __init__(self, held: torch.Tensor, there: torch.Tensor) -> None:
        self.stream = _stream_of(there.device) if there.is_cuda else None
        self._inside: AbstractContextManager[Any] = nullcontext()
        with self:
            there.copy_(held, non_blocking=True)
        if self.stream is not None:
            there.record_stream(self.stream)
        self.arrives = 0.0
        if (rate := _bytes_per_s(os.environ.get(VARIABLE, ""))) is not None:
            self.arrives = max(time.perf_counter(), _carried.until) + held.nbytes / rate
            _carried.until = self.arrives

    def __enter__(self) -> None:
        self._inside = torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)

    def wait(self) -> None:
        """Blocks until an emulated link has carried it."""
        if self.arrives:
            time.sleep(max(0.0, self.arrives - time.perf_counter()))


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def to_host(x: torch.Tensor) -> torch.Tensor:
    """A copy in the memory of the host, which a GPU reads and writes directly (pinned)."""
    copied = torch.empty_like(x, device="cpu", pin_memory=torch.cuda.is_available())
    return copied.copy_(x)
