"""Parts that the zoo's own models share: batch norm in groups, random images."""

from typing import TYPE_CHECKING

from ssdsl.model.load.options import DTYPES

if TYPE_CHECKING:
    import torch


def grouped(net: "torch.nn.Module", groups: int) -> "torch.nn.Module":
    """The module with batch norms that take the statistics of each of `groups` equal parts of the batch by itself."""
    from ssdsl.model.rewrite.grouped_norm import micro_batch_statistics

    return micro_batch_statistics(net, groups) if groups > 1 else net


def group_problem(batch: int, groups: int) -> str:
    """The reason why a batch has no `groups` equal parts, or ""."""
    return f"batch = {batch} is no multiple of statistics = {groups}" if batch % groups else ""


def images(
    shape: tuple[int, ...], classes: int, dtype: str, draws: "torch.Generator", meta: bool, dense: bool = False
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Images of noise, [batch, channels, space...], and random labels: one per image, or per pixel if `dense`.

    With `meta` both are on the meta device: the papers' images are many and large.
    """
    import torch

    space = (shape[0], *shape[2:]) if dense else shape[:1]
    pixels = noise(shape, dtype, draws, meta)
    if meta:
        return pixels, torch.empty(space, dtype=torch.int64, device="meta")
    return pixels, torch.randint(classes, space, generator=draws)


def noise(shape: tuple[int, ...], dtype: str, draws: "torch.Generator", meta: bool) -> "torch.Tensor":
    """Normal random numbers of a dtype; with `meta`, a tensor on the meta device."""
    import torch

    form = getattr(torch, DTYPES[dtype])
    return torch.empty(shape, dtype=form, device="meta") if meta else torch.randn(shape, generator=draws).to(form)
