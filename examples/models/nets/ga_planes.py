"""GA-Planes: grids of features that points read by interpolation, and decoders that make one number of features."""

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.ga_planes import SPACE, GaPlanes
from ssdsl.model.zoo.nets.inputs import Batch

RADIUS, TUBE = 0.6, 0.3  # of the torus
SPREAD = 0.1  # of features at the start


class GaPlanesNet(nn.Module):
    """Returns the mean loss of the points: squared errors, or binary cross-entropies."""

    def __init__(self, size: GaPlanes) -> None:
        super().__init__()
        self.segments = size.task == "segmentation"
        self.grids = Grids(size)
        self.decoder = {"linear": LinearDecoder, "convex": ConvexDecoder, "relu": ReluDecoder}[size.decoder](size)

    def forward(self, points: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.decoder(self.grids(points), points)
        return F.binary_cross_entropy_with_logits(y, target) if self.segments else F.mse_loss(y, target)

    @staticmethod
    def example(size: GaPlanes, draws: torch.Generator, meta: bool) -> Batch:
        """Random points of the cube from -1 to 1, with the answers of the task."""
        points = 2 * torch.rand(size.batch, SPACE, generator=draws) - 1
        if size.task == "regression":
            return {"points": points, "target": (3 * points).cos().prod(dim=1)}
        ring = points[:, :2].norm(dim=1) - RADIUS
        return {"points": points, "target": (ring.square() + points[:, 2].square() < TUBE**2).float()}


class Grids(nn.Module):
    """The features of points, from grids that are trained, or fixed ones."""

    def __init__(self, size: GaPlanes, trained: bool = True) -> None:
        super().__init__()
        self.combine, self.axes = size.combine, list(size.elements())
        for axes, side in size.elements().items():
            grid = torch.empty(1, size.features, *(side for _ in axes))
            nn.init.normal_(grid, mean=float(size.combine == "product"), std=SPREAD)  # a product of ones is stable
            name = _name(axes)
            if trained:
                self.register_parameter(name, nn.Parameter(grid))
            else:
                self.register_buffer(name, grid)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """The combined features [point, feature] of points [point, coordinate]."""
        found = [sampled(getattr(self, _name(axes)), points, axes) for axes in self.axes]
        if self.combine == "concat":
            return torch.cat(found, dim=1)
        y = found[0]
        for other in found[1:]:
            y = y + other if self.combine == "sum" else y * other
        return y


def _name(axes: tuple[int, ...]) -> str:
    """The name of a basis element: e12 for the plane of the first two axes."""
    return "e" + "".join(str(axis + 1) for axis in axes)


def sampled(grid: torch.Tensor, points: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The features [point, feature] that points read in a grid [1, feature, side ...] along some axes.

    `grid_sample` counts axes from the last; a line is a plane of one row.
    """
    read = [points[:, axis] for axis in reversed(axes)]
    if len(axes) == 1:
        grid, read = grid.unsqueeze(2), [*read, torch.zeros_like(read[0])]
    places = torch.stack(read, dim=-1).reshape(1, -1, *(1 for _ in read[1:]), len(read))
    return F.grid_sample(grid, places, padding_mode="border", align_corners=True).flatten(2)[0].t()


class LinearDecoder(nn.Module):
    """A sum of features with weights."""

    def __init__(self, size: GaPlanes) -> None:
        super().__init__()
        self.sum = nn.Linear(size.combined, 1)

    def forward(self, features: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return self.sum(features).squeeze(1)


class ConvexDecoder(nn.Module):
    """The mean over units of `w @ f`, each counted only if its gate `g @ f0` is positive.

    Features `f` and weights `w` are trained; `f0` and `g` are fixed random numbers, so the result is linear in `w`, and
    in sums of features `f`.
    """

    gates: torch.Tensor

    def __init__(self, size: GaPlanes) -> None:
        super().__init__()
        self.sums, self.fixed = nn.Linear(size.combined, size.hidden), Grids(size, trained=False)
        self.register_buffer("gates", torch.randn(size.hidden, size.combined))

    def forward(self, features: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        is_open = F.linear(self.fixed(points), self.gates) > 0
        return (self.sums(features) * is_open).mean(dim=1)


class ReluDecoder(nn.Module):
    """A layer of ReLU and a sum with weights."""

    def __init__(self, size: GaPlanes) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(size.combined, size.hidden), nn.Linear(size.hidden, 1)

    def forward(self, features: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(features).relu()).squeeze(1)
