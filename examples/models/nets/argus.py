"""The two stages of Argus-3D: a codebook of shapes, and a GPT over its tokens."""

from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.argus import PLANES, ArgusCodebook, ArgusPrior
from ssdsl.model.zoo.nets.inputs import Batch
from ssdsl.model.zoo.nets.moe_gpt import FeedForward, TransformerBlock
from ssdsl.model.zoo.nets.unet3d import down_and_up

AXES = ((0, 1), (0, 2), (1, 2))  # the coordinates of a point on each plane
CODES = 0.4  # the weight of the distance of codes from vectors


class ArgusCodebookNet(nn.Module):
    """Returns the mean cross-entropy of queries plus the distances of vectors and codes.

    points [batch, point, 3], queries [batch, query, 3], occupancy [batch, query] (1 inside) -> a scalar.
    """

    def __init__(self, size: ArgusCodebook) -> None:
        super().__init__()
        f = size.features
        self.resolution = size.resolution
        self.point = nn.Sequential(nn.Linear(3, 2 * f), nn.ReLU(), nn.Linear(2 * f, f))
        self.join = nn.Conv2d(PLANES * f, f, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in size.downwards())
        self.vector = nn.Conv2d(f << size.halvings, size.width, 1)
        self.codebook = Codebook(size.width, size.reduced, size.codes)
        self.up = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in size.upwards())
        self.unet, self.planes = PlaneUnet(f, size.widths()), nn.Conv2d(f, PLANES * f, 1)
        self.query = Occupancy(f, size.hidden)

    def forward(self, points: torch.Tensor, queries: torch.Tensor, occupancy: torch.Tensor) -> torch.Tensor:
        features = self.point(points).transpose(1, 2)
        x = self.join(torch.cat([projected(features, points[..., axes], self.resolution) for axes in AXES], dim=1))
        for halve in self.down:
            x = halve(F.relu(x))
        x, distance = self.codebook(self.vector(F.relu(x)))
        for larger in self.up:
            x = F.relu(larger(F.interpolate(x, scale_factor=2.0, mode="nearest")))
        planes = self.planes(self.unet(x)).chunk(PLANES, dim=1)
        read = [sampled_plane(plane, queries[..., axes]) for plane, axes in zip(planes, AXES, strict=True)]
        scores = self.query(queries, read[0] + read[1] + read[2])
        return F.binary_cross_entropy_with_logits(scores, occupancy) + distance

    @staticmethod
    def example(size: ArgusCodebook, draws: torch.Generator, meta: bool) -> Batch:
        """Points on spheres of different sizes in the cube from -1 to 1, and whether queries are inside."""
        radius = 0.2 + 0.6 * torch.rand(size.batch, 1, generator=draws)
        points = F.normalize(torch.randn(size.batch, size.points, 3, generator=draws), dim=-1)
        queries = 2 * torch.rand(size.batch, size.queries, 3, generator=draws) - 1
        is_inside = queries.norm(dim=-1) < radius
        return {"points": radius[:, :, None] * points, "queries": queries, "occupancy": is_inside.float()}


def projected(features: torch.Tensor, places: torch.Tensor, cells: int) -> torch.Tensor:
    """The means [batch, feature, row, column] of the features [batch, feature, point] of the points of each cell.

    `places` [batch, point, 2] are from -1 to 1; a cell without points has zeros.
    """
    row, column = ((places + 1) * (cells / 2)).long().clamp(0, cells - 1).unbind(-1)
    cell = (row * cells + column)[:, None]
    empty = features.new_zeros(features.shape[0], features.shape[1], cells**2)
    sums = empty.scatter_add(2, cell.expand_as(features), features)
    counts = empty[:, :1].scatter_add(2, cell, torch.ones_like(features[:, :1]))
    return (sums / counts.clamp(min=1)).reshape(*features.shape[:2], cells, cells)


def sampled_plane(plane: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The features of a plane [batch, feature, row, column] at places [batch, place, 2]: [batch, place, feature]."""
    read = F.grid_sample(plane, places.flip(-1)[:, None], padding_mode="border", align_corners=False)
    return read[:, :, 0].transpose(1, 2)


class Codebook(nn.Module):
    """Replaces vectors by their nearest codes, compared in few dimensions (van den Oord et al. 2017, 1711.00937)."""

    def __init__(self, width: int, reduced: int, codes: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Linear(width, reduced), nn.Linear(reduced, width)
        self.codes = nn.Embedding(codes, reduced)
        nn.init.uniform_(self.codes.weight, -0.5, 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes in place of the vectors x [batch, width, row, column], and the distances that the loss has."""
        z = self.reduce(x.permute(0, 2, 3, 1))
        q = self.codes(self.nearest(z))
        distance = F.mse_loss(z, q.detach()) + CODES * F.mse_loss(q, z.detach())
        y: torch.Tensor = self.expand(z + (q - z).detach())  # straight-through
        return y.permute(0, 3, 1, 2), distance

    def nearest(self, z: torch.Tensor) -> torch.Tensor:
        """The number of the nearest code of each vector; of equally near ones the lowest."""
        with torch.no_grad():
            codes = self.codes.weight
            # |z - c|^2 = |z|^2 - 2 z c + |c|^2, and |z|^2 is the same for all codes
            return (codes.square().sum(1) - 2 * F.linear(z, codes)).argmin(-1)


class PlaneUnet(nn.Module):
    """A U-Net of double convolutions, with poolings down and transposed convolutions up."""

    def __init__(self, given: int, widths: list[int]) -> None:
        super().__init__()
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise([given, *widths]))
        pairs = list(pairwise(widths))[::-1]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(below, w, 2, stride=2) for w, below in pairs)
        self.up = nn.ModuleList(_double(2 * w, w) for w, _ in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return down_and_up(x, self.down, lambda y: F.max_pool2d(y, 2), self.rise, self.up)


def _double(given: int, made: int) -> nn.Sequential:
    first, second = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class Occupancy(nn.Module):
    """The score [batch, query] of being inside, from places [batch, query, 3] and the features read there."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.place, self.feature = nn.Linear(3, hidden), nn.Linear(features, hidden)
        self.up, self.down, self.score = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, places: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        x = self.place(places) + self.feature(features)
        x = x + self.down(F.relu(self.up(F.relu(x))))
        return self.score(F.relu(x)).squeeze(-1)


class ArgusPriorNet(nn.Module):
    """Returns the mean cross-entropy of a shape's tokens, each predicted from its category and the tokens before it.

    tokens [batch, seq], category [batch] -> a scalar.
    """

    def __init__(self, size: ArgusPrior) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.codes, size.hidden), nn.Embedding(size.seq, size.hidden)
        self.category = nn.Embedding(size.classes, size.hidden)
        ffn = partial(FeedForward, size.hidden, 4 * size.hidden)
        self.blocks = nn.ModuleList(TransformerBlock(size.hidden, size.heads, ffn) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        for weight in (self.words.weight, self.places.weight, self.category.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.category(category)[:, None], self.words(tokens[:, :-1])], dim=1)
        x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x, _ = block(x)
        scores = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(scores.float().flatten(0, 1), tokens.flatten())

    @staticmethod
    def example(size: ArgusPrior, draws: torch.Generator, meta: bool) -> Batch:
        """Random tokens and categories."""
        tokens = torch.randint(size.codes, (size.batch, size.seq), generator=draws)
        return {"tokens": tokens, "category": torch.randint(size.classes, (size.batch,), generator=draws)}
