"""Small messages between all ranks, beside the tensors of a step: what they agree on, and what went wrong on one.

They travel on the CPU in a group of their own, so they meet no collective of the step's, and wait for no device.
"""

import ctypes
from enum import IntEnum

import torch

from ..errors import EngineError
from .transport import Transport


class _Word(IntEnum):
    """What ranks vote; the largest counts."""

    MORE = 0
    END = 1
    ERROR = 2
    LEFT = 3


class Control:
    """Called by all ranks alike, in the same order."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._group = transport.new_control_group()
        self._word = torch.zeros(1, dtype=torch.int64)
        self.waits = False  # for the word of all ranks

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.transport.size

    def vote(self, error: str | None = None, more: bool = True) -> bool:
        """Whether all ranks have `more`; a rank that has an error votes that, and raises with the others.

        Raises EngineError on all ranks, with what each of the failing ones says. One all_reduce of a number.
        """
        self._word.fill_(_Word.ERROR if error is not None else _Word.MORE if more else _Word.END)
        self.waits = True
        self.transport.all_reduce(self._word, self._group, "max")
        self.waits = False
        word = int(self._word)
        if word == _Word.ERROR:
            said = [text.decode() for text in self.all_gather((error or "").encode())]
            raise EngineError(*_told(said))
        if word == _Word.LEFT:
            reason = "on another rank the script has ended, and this rank goes on"
            raise EngineError(reason, "let all ranks run the same loop: as many steps, and no exit of one alone")
        return word == _Word.MORE

    def leave(self) -> None:
        """Says that this rank's script ends; returns when the others' do, or have been told."""
        self._word[0] = _Word.LEFT
        self.transport.all_reduce(self._word, self._group, "max")

    def sum(self, numbers: list[float]) -> list[float]:
        """The sums of each rank's numbers, in float64."""
        total = torch.tensor(numbers, dtype=torch.float64)
        self.waits = True
        self.transport.all_reduce(total, self._group)
        self.waits = False
        return total.tolist()

    def all_gather(self, payload: bytes) -> list[bytes]:
        """What each rank gives, in the order of ranks."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        self.transport.all_gather(sizes, torch.tensor([len(payload)]), self._group)
        longest = int(sizes.max())
        if longest == 0:
            return [b""] * self.size
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(payload)] = _as_tensor(payload)
        all_bytes = torch.zeros(self.size * longest, dtype=torch.uint8)
        self.transport.all_gather(all_bytes, mine, self._group)
        rows = all_bytes.view(self.size, longest)
        return [bytes_of(row[:size]) for row, size in zip(rows, sizes.tolist(), strict=True)]

    def gather(self, payload: bytes) -> list[bytes] | None:
        """What each rank gives, on rank 0; None on the others."""
        found = self.all_gather(payload)
        return found if self.rank == 0 else None

    def broadcast(self, payload: bytes | None) -> bytes:
        """What rank 0 gives, on all ranks."""
        size = torch.tensor([len(payload) if self.rank == 0 and payload is not None else 0])
        self.transport.all_reduce(size, self._group, "max")
        if int(size) == 0:
            return b""
        sent = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == 0 and payload is not None:
            sent.copy_(_as_tensor(payload))
        self.transport.all_reduce(sent, self._group, "max")
        return bytes_of(sent)

    def merge(self, tensor: torch.Tensor) -> None:
        """Overwrites a tensor of which each element is zero on all ranks but one with that one's."""
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        self.transport.all_reduce(flat, self._group, "max")
        tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))

    def share(self, tensor: torch.Tensor) -> None:
        """Overwrites a tensor with rank 0's."""
        if self.rank != 0:
            tensor.detach().zero_()
        self.merge(tensor)


class LoneControl(Control):
    """The control of a process without others."""

    def __init__(self) -> None:
        self.waits = False

    @property
    def rank(self) -> int:
        """The first, of one."""
        return 0

    @property
    def size(self) -> int:
        """One."""
        return 1

    def vote(self, error: str | None = None, more: bool = True) -> bool:
        """Raises the error."""
        if error is not None:
            reason, _, change = error.partition("\n  help: ")  # as EngineError says it
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
    """The numbers of a tensor on the CPU as they lie in memory, without NumPy, which may not be there."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _told(said: list[str]) -> tuple[str, str]:
    """One text of what the failing ranks say: equal errors are said once, each with its ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(said):
        if text:
            ranks.setdefault(text, []).append(rank)
    texts = [f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {text}" for text, who in ranks.items()]
    return "\n".join(texts), ""
