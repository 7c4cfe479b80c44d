"""What the zoo's models of our own share: groups of batch norms, random images."""

from typing import TYPE_CHECKING

from ssdsl.model.load.options import DTYPES

if TYPE_CHECKING:
    import torch


def grouped(net: "torch.nn.Module", groups: int) -> "torch.nn.Module":
    """The module whose batch norms take the statistics of each of `groups` equal parts of the batch by itself."""
    from ssdsl.model.grouped_norm import micro_batch_statistics

    return micro_batch_statistics(net, groups) if groups > 1 else net


def group_problem(batch: int, groups: int) -> str:
    """Why a batch has no such parts, or nothing."""
    return f"batch = {batch} is no multiple of statistics = {groups}" if batch % groups else ""


def images(
    shape: tuple[int, ...], classes: int, dtype: str, draws: "torch.Generator", meta: bool, dense: bool = False
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Images of noise, batch x channels x space, and random labels: each has one, or each pixel if they are `dense`.

    Both are on the meta device if asked: the papers' images are many and large.
    """
    import torch

    space = (shape[0], *shape[2:]) if dense else shape[:1]
    pixels = noise(shape, dtype, draws, meta)
    if meta:
        return pixels, torch.empty(space, dtype=torch.int64, device="meta")
    return pixels, torch.randint(classes, space, generator=draws)


def noise(shape: tuple[int, ...], dtype: str, draws: "torch.Generator", meta: bool) -> "torch.Tensor":
    """Normal numbers in a format; none on the meta device."""
    import torch

    form = getattr(torch, DTYPES[dtype])
    return torch.empty(shape, dtype=form, device="meta") if meta else torch.randn(shape, generator=draws).to(form)
