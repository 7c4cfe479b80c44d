"""Layers that read windows of a sequence or of an image."""

import torch.nn.functional as F
from torch import Tensor, nn


class Conv(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.wide, self.back = nn.Conv1d(hidden, inner, 3, padding=1), nn.Conv1d(inner, hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(self.wide(x.transpose(1, 2)).relu()).transpose(1, 2)


class Image(nn.Module):
    """The activations as images of one channel: convolutions, statistics of the batch, pooling, other resolutions."""

    def __init__(self, channels: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.wide, self.back = nn.Conv2d(1, channels, 3, padding=1), nn.Conv2d(channels, 1, 1, bias=False)
        match kind:
            case "norm":
                self.more = nn.BatchNorm2d(channels)
            case "groups":
                self.more = nn.GroupNorm(2, channels)
            case "strided":
                self.more = nn.Conv2d(channels, channels, 3, 2, 1, groups=2)
            case "dilated":
                self.more = nn.Conv2d(channels, channels, 3, padding=2, dilation=2)
            case "even":
                self.more = nn.Conv2d(channels, channels, 4, padding="same")
            case "large":
                self.more = nn.Conv2d(channels, channels, (7, 1), padding=(3, 0))
            case "transposed":
                self.more = nn.ConvTranspose2d(channels, channels, 3, 2, 1)
            case _:
                self.more = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.more(self.wide(x.unsqueeze(1)))
        match self.kind:
            case "pool":
                y = F.interpolate(F.avg_pool2d(y, (1, 2)), scale_factor=(1.0, 2.0))
            case "maximum":
                y = F.interpolate(F.max_pool2d(y, 3, 2, 1, ceil_mode=True), x.shape[1:], mode="bilinear")
            case "strided" | "transposed":
                y = F.interpolate(y, x.shape[1:])
            case "drop":
                y = F.dropout2d(y, 0.3)
        return x + self.back(y.relu()).squeeze(1)
