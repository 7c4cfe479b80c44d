"""Small messages between all ranks, apart from the tensors of a step: agreement, and errors of single ranks.

They use a CPU group of their own. So they do not mix with the step's collectives, and do not wait for a device.
"""

import ctypes
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch

from ..errors import EngineError
from .transport import Merge, Transport


class _Vote(IntEnum):
    """Votes of a rank; the largest wins. `END`: it has no more batches. `LEFT`: its script has ended."""

    MORE = 0
    END = 1
    ERROR = 2
    LEFT = 3


class Control:
    """Communication of all ranks. All ranks make the same calls in the same order."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._group = transport.new_control_group()
        self._vote = torch.zeros(3, dtype=torch.int64)  # buffer: the vote, `alike`, and its opposite
        self.waits = False  # whether this rank is in an all_reduce now; the heartbeat's thread reads it

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.transport.size

    def vote(self, error: str | None = None, more: bool = True, alike: int = 0) -> bool:
        """Whether `more` is true on all ranks, and `alike` is the same number. Costs one all_reduce of three numbers.

        Raises EngineError on all ranks if one has an error, with the texts of the failing ones, or if one has left.
        """
        self._vote[0] = _Vote.ERROR if error is not None else _Vote.MORE if more else _Vote.END
        self._vote[1], self._vote[2] = alike, -alike
        self._reduce(self._vote, "max")
        vote, largest, smallest = map(int, self._vote.tolist())
        if vote == _Vote.ERROR:
            said = [text.decode() for text in self.all_gather((error or "").encode())]
            raise EngineError(*_with_ranks(said))
        if vote == _Vote.LEFT:
            reason = "on another rank the script has ended, and this rank goes on"
            raise EngineError(reason, "let all ranks run the same loop: as many steps, and no exit of one alone")
        return vote == _Vote.MORE and largest == -smallest

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context: an error of one rank inside it is raised on all ranks, as by `vote`."""
        error = None
        try:
            yield
        except EngineError as found:
            error = str(found)
        self.vote(error)

    def leave(self) -> None:
        """Announces that this rank's script ends. Returns when the other ranks have left, too, or have been told."""
        self._vote[0] = _Vote.LEFT
        self._reduce(self._vote, "max")

    def sum(self, numbers: list[float]) -> list[float]:
        """The sum over ranks of each number, in float64."""
        total = torch.tensor(numbers, dtype=torch.float64)
        self._reduce(total)
        return total.tolist()

    def _reduce(self, x: torch.Tensor, merge: Merge = "sum") -> None:
        self.waits = True
        self.transport.start_all_reduce(x, self._group, merge).wait()
        self.waits = False

    def all_gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all ranks, in order."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        self.transport.start_all_gather(sizes, torch.tensor([len(payload)]), self._group).wait()
        longest = int(sizes.max())
        if longest == 0:
            return [b""] * self.size
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(payload)] = _as_tensor(payload)
        all_bytes = torch.zeros(self.size * longest, dtype=torch.uint8)
        self.transport.start_all_gather(all_bytes, mine, self._group).wait()
        rows = all_bytes.view(self.size, longest)
        return [bytes_of(row[:size]) for row, size in zip(rows, sizes.tolist(), strict=True)]

    def outlier(self, payload: bytes) -> int | None:
        """The first rank whose payload is not that of rank 0; None if all are alike."""
        said = self.all_gather(payload)
        return next((rank for rank, other in enumerate(said) if other != said[0]), None)

    def difference(self, facts: Mapping[str, Any]) -> tuple[str, str] | None:
        """The first fact in which a rank differs from rank 0, and its values on the two; None if all are alike."""
        said = [json.loads(told) for told in self.all_gather(json.dumps(facts, default=str).encode())]
        for rank, other in enumerate(said):
            for name in {**said[0], **other}:
                if other.get(name) != said[0].get(name):
                    return name, f"{said[0].get(name)} on rank 0, {other.get(name)} on rank {rank}"
        return None

    def gather(self, payload: bytes) -> list[bytes] | None:
        """The payloads of all ranks, on rank 0; None on the others."""
        found = self.all_gather(payload)
        return found if self.rank == 0 else None

    def broadcast(self, payload: bytes | None) -> bytes:
        """The payload of rank 0, on all ranks."""
        size = torch.tensor([len(payload or b"")])
        self.share(size)
        sent = _as_tensor(payload or b"") if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        if int(size):
            self.share(sent)
        return bytes_of(sent)

    def merge(self, tensor: torch.Tensor) -> None:
        """Overwrites a tensor, each element of which is zero on all ranks but one, with that rank's elements."""
        # as bytes, of which zero is the least: so the maximum is the other number, in any dtype
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        self._reduce(flat, "max")
        tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))

    def share(self, tensor: torch.Tensor) -> None:
        """Overwrites a tensor with rank 0's."""
        if self.rank != 0:
            tensor.detach().zero_()
        self.merge(tensor)


class LoneControl(Control):
    """The control of a single process, without a transport: it can vote, gather and broadcast."""

    def __init__(self) -> None:
        self.waits = False

    @property
    def rank(self) -> int:
        """The rank, 0."""
        return 0

    @property
    def size(self) -> int:
        """The number of ranks, 1."""
        return 1

    def vote(self, error: str | None = None, more: bool = True, alike: int = 0) -> bool:
        """Raises the error."""
        if error is not None:
            reason, _, change = error.partition("\n  help: ")  # in EngineError's form
            raise EngineError(reason, change)
        return more

    def all_gather(self, payload: bytes) -> list[bytes]:
        """The one payload."""
        return [payload]

    def broadcast(self, payload: bytes | None) -> bytes:
        """The payload."""
        return payload or b""


def _as_tensor(payload: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.zeros(0, dtype=torch.uint8)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a CPU tensor, without NumPy, which may not be installed."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _with_ranks(said: list[str]) -> tuple[str, str]:
    """One text for the errors of all failing ranks: equal errors appear once, with their ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(said):
        if text:
            ranks.setdefault(text, []).append(rank)
    texts = [f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {text}" for text, who in ranks.items()]
    return "\n".join(texts), ""
