"""Whether the numbers of a tensor can be read. Kernels whose results depend on numbers ask first."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

_reads: ContextVar[bool] = ContextVar("whether all tensors have numbers", default=False)


def has_numbers(x: torch.Tensor) -> bool:
    """Whether a tensor has numbers: those on which torch captures and measures calls have none."""
    return _reads.get() or not (x.is_meta or isinstance(x, FakeTensor))


@contextmanager
def with_numbers() -> Iterator[None]:
    """A context in which every tensor counts as one with numbers: somebody answers each read of a meta tensor."""
    before = _reads.set(True)
    try:
        yield
    finally:
        _reads.reset(before)
