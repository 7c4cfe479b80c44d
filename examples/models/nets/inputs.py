"""Random inputs of the zoo's own models. Those of the papers are many and large: with `meta` they have no numbers."""

import torch

from ssdsl.model.zoo.resnet import CHANNELS, Resnet
from ssdsl.model.zoo.vgg import Vgg

Batch = dict[str, torch.Tensor]


def noise(shape: tuple[int, ...], draws: torch.Generator, meta: bool) -> torch.Tensor:
    """Normal random numbers."""
    return torch.empty(shape, device="meta") if meta else torch.randn(shape, generator=draws)


def labels(shape: tuple[int, ...], classes: int, draws: torch.Generator, meta: bool) -> torch.Tensor:
    """Numbers of random classes."""
    if meta:
        return torch.empty(shape, dtype=torch.int64, device="meta")
    return torch.randint(classes, shape, generator=draws)


def classified_images(size: Resnet | Vgg, draws: torch.Generator, meta: bool) -> Batch:
    """Square images of noise, and a class for each."""
    pixels = noise((size.batch, CHANNELS, size.image, size.image), draws, meta)
    return {"pixel_values": pixels, "labels": labels((size.batch,), size.classes, draws, meta)}
