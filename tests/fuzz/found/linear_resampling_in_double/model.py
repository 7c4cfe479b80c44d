import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 2, 2, 6, 2


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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Image(4, "maximum")])
        self.head = nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = (self.head(x) - y).square().mean()
        for term in terms:
            loss = loss + term
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [
        {
            "x": torch.randn(B, S, V, generator=g, dtype=torch.float64),
            "y": torch.randn(B, S, H, generator=g, dtype=torch.float64),
        }
        for _ in range(1)
    ]
    return Net().double(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
