"""Numbers that the host reads from a device to know sizes, and numbers that it sends there. A read waits until the
device has done all that was started."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

Read = Callable[[Sequence[torch.Tensor]], list[int]]  # the elements of all these tensors of one axis
READ = "ssdsl_read"  # the attribute of a tensor whose numbers the host has

_reads: ContextVar[Read | None] = ContextVar("what reads numbers of rows in place of torch", default=None)


def has_numbers(x: torch.Tensor) -> bool:
    """Whether a tensor has numbers: those on which torch captures and measures calls have none."""
    return _reads.get() is not None or not (x.is_meta or isinstance(x, FakeTensor))


def read_rows(*counts: torch.Tensor) -> list[list[int]]:
    """The elements of tensors of one axis, which are numbers of rows. The host keeps them with their tensors, and reads
    those that it does not have all at once.

    >>> read_rows(torch.tensor([3, 0]), torch.tensor([2]))
    [[3, 0], [2]]
    """
    unread = [x for x in counts if READ not in vars(x)]
    if unread:
        read = _reads.get() or _read
        numbers = iter(read(unread))
        for x in unread:
            vars(x)[READ] = [next(numbers) for _ in range(x.numel())]
    return [vars(x)[READ] for x in counts]


def on_device(numbers: Sequence[float], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of these numbers. The host does not wait for a GPU, as it does in `torch.tensor` with a device."""
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


def _read(counts: Sequence[torch.Tensor]) -> list[int]:
    return (torch.cat([*counts]) if len(counts) > 1 else counts[0]).tolist()


@contextmanager
def reading(read: Read) -> Iterator[None]:
    """A context in which numbers of rows are what `read` says, and every tensor counts as one with numbers."""
    before = _reads.set(read)
    try:
        yield
    finally:
        _reads.reset(before)
