"""A small state that ranks hold in parts: rows over the ranks, a replica, a strided part, a span as ZeRO has it."""

from collections.abc import Callable
from typing import Any

import torch

from ssdsl.runtime.checkpoints.content import Content, content_of
from ssdsl.runtime.layout.cut import Piece
from ssdsl.runtime.step.parts import LocalTensor


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """The whole tensors of a checkpoint."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "rows": torch.randn(12, 3, generator=draw),
        "strided": torch.randn(2, 36, generator=draw).double(),
        "flat": torch.randn(3, 5, generator=draw).bfloat16(),
        "count": torch.tensor(seed),
        "empty": torch.zeros(0, 4),
    }


def held(name: str, whole: torch.Tensor, rank: int, size: int) -> LocalTensor:
    """What a rank holds of a tensor."""
    match name:
        case "rows":
            piece = Piece(name, (12, 3), ((0, 1, size, rank),))
        case "strided":
            piece = Piece(name, (2, 36), ((1, 3, size, rank),))
        case _:
            piece = Piece(name, tuple(whole.shape), ())
    if name == "flat":
        start, stop = 15 * rank // size, 15 * (rank + 1) // size
        return LocalTensor(name, piece, (start, stop), whole.reshape(-1)[start:stop].clone(), True)
    return LocalTensor(name, piece, None, piece.of(whole).clone(), name in ("rows", "strided") or rank == 0)


def content(seed: int, rank: int, size: int, facts: dict[str, Any] | None = None) -> Content:
    """A rank's part; its optimizer state is the weights and one more."""
    mine = {name: held(name, whole, rank, size) for name, whole in tensors(seed).items()}
    state = {"rows": {"exp_avg": _more(mine["rows"]), "step": torch.tensor(float(seed))}}
    state["flat"] = {"exp_avg": _more(mine["flat"]), "step": torch.tensor(float(seed))}
    return content_of(mine.values(), state, {"steps": seed, **(facts or {})}, aliases={"also_rows": "rows"})


def _more(of: LocalTensor) -> LocalTensor:
    return LocalTensor(of.name, of.piece, of.span, of.tensor + 1, of.owns)


def check(read: Callable[[tuple[str, ...]], torch.Tensor], seed: int) -> None:
    """Every tensor is that of the seed, to the bit."""
    for name, whole in tensors(seed).items():
        found = read(("model", name))
        assert found.dtype == whole.dtype and torch.equal(found, whole), name
    assert torch.equal(read(("model", "also_rows")), tensors(seed)["rows"])
    assert torch.equal(read(("optim", "state", "rows", "exp_avg")), tensors(seed)["rows"] + 1)
    assert torch.equal(read(("optim", "state", "flat", "exp_avg")), tensors(seed)["flat"] + 1)
    assert read(("optim", "state", "flat", "step")) == seed
