"""Models of which each sample is computed by itself, by operators that have the whole batch in their arguments."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]


class Transformer(nn.Module):
    """Images are turned before they are classified (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.conv, self.head = nn.Linear(16, 6), nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        grid = F.affine_grid(self.turn(image.flatten(1)).view(-1, 2, 3), list(image.shape), align_corners=False)
        turned = F.grid_sample(image, grid, align_corners=False)
        return F.cross_entropy(self.head(self.conv(turned).relu().amax((2, 3))), label)


class Normal(nn.Module):
    """A normal distribution of each sample, by the factor of its precision: a triangle is filled by two indices."""

    def __init__(self) -> None:
        super().__init__()
        self.rise, self.mean, self.factor = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 6)
        self.register_buffer("places", torch.tril_indices(3, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, (row, column) = self.rise(x).relu(), self.places
        factor = torch.zeros(len(x), 3, 3)
        factor[:, row, column] = self.factor(h)
        length = factor.diagonal(dim1=1, dim2=2)
        away = (factor @ (y - self.mean(h)).unsqueeze(2)).square().sum((1, 2))
        return (away / 2 - (length.abs() + 0.1).log().sum(1)).mean()


def transformer() -> Case:
    torch.manual_seed(0)
    batch = {"image": torch.randn(4, 1, 4, 4), "label": torch.randint(3, (4,))}
    return Transformer(), batch, {"image": ("batch", "channel", "height", "width"), "label": ("batch",)}


def normal() -> Case:
    torch.manual_seed(0)
    return Normal(), {"x": torch.randn(4, 4), "y": torch.randn(4, 3)}, {"x": ("batch", "in"), "y": ("batch", "out")}
