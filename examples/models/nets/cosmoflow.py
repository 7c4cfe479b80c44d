"""CosmoFlow: blocks of a 3 x 3 x 3 convolution and an average pooling that halves, then three linear layers."""

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.cosmoflow import CHANNELS, TARGETS, Cosmoflow
from ssdsl.model.zoo.nets.inputs import Batch, noise

SLOPE = 0.3  # of the leaky ReLU


class CosmoFlowNet(nn.Module):
    """Returns the mean squared error of the predicted parameters of a universe."""

    def __init__(self, size: Cosmoflow) -> None:
        super().__init__()
        *before, last = size.channels()
        blocks = [
            *(PooledConvolution(*c, size.norm == "batch") for c in before),
            PooledConvolution(*last, size.norm == "batch", size.stride),
        ]
        self.blocks = nn.Sequential(*blocks)
        layers = (nn.Linear(given, made) for given, made in size.connected())
        self.first, self.second, self.last = layers
        self.drop = nn.Dropout(size.dropout)

    def forward(self, volume: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.first(self.blocks(volume).flatten(1))
        x = self.second(self.drop(F.leaky_relu(x, SLOPE)))
        x = self.last(self.drop(F.leaky_relu(x, SLOPE)))
        return F.mse_loss(x, target)

    @staticmethod
    def example(size: Cosmoflow, draws: torch.Generator, meta: bool) -> Batch:
        """Volumes of noise with random targets."""
        volume = (size.batch, CHANNELS, size.width, size.width, size.width)
        return {"volume": noise(volume, draws, meta), "target": noise((size.batch, TARGETS), draws, meta)}


class PooledConvolution(nn.Module):
    """A convolution that divides the size by `stride`, leaky ReLU, an average over windows of 3 that halves it."""

    def __init__(self, given: int, made: int, norm: bool, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv3d(given, made, 3, stride, padding=1, bias=not norm)
        self.norm = nn.BatchNorm3d(made) if norm else nn.Identity()
        self.pool = nn.AvgPool3d(3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(F.leaky_relu(self.norm(self.conv(x)), SLOPE))
