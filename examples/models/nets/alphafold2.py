"""An Evoformer with recycling. Algorithms have the numbers of the supplement of Jumper et al. 2021.

`m` represents a protein's sequences and residues, (batch, sequences, residues, msa); `z` its pairs of residues, (batch,
residues, residues, pair).
"""

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.alphafold2 import BINS, NEAR, SYMBOLS, AlphaFold2
from ssdsl.model.zoo.nets.inputs import Batch

MASKED_WEIGHT, DISTANCE_WEIGHT = 2.0, 0.3  # of the losses, equation 7
MASK = SYMBOLS - 1
MASKED = 0.15  # of the symbols
IGNORED = -100  # the label of a symbol that is not masked
Pair = tuple[torch.Tensor, torch.Tensor]


class AlphaFold2Net(nn.Module):
    """Returns the loss of masked symbols and distances, after `passes` runs of the trunk; the last has gradients."""

    def __init__(self, size: AlphaFold2) -> None:
        super().__init__()
        self.passes = size.passes
        self.embed = Embedding(size.msa, size.pair)
        if size.passes > 1:
            self.recycle = Recycling(size.msa, size.pair)
        self.trunk = Trunk(size)
        self.symbols, self.distances = nn.Linear(size.msa, SYMBOLS), nn.Linear(size.pair, BINS)

    def forward(
        self, target: torch.Tensor, msa: torch.Tensor, labels: torch.Tensor, distances: torch.Tensor
    ) -> torch.Tensor:
        start = self.embed(target, msa)
        with torch.no_grad():
            state = start
            for run in range(self.passes - 1):
                state = self.trunk(*(self.recycle(*start, *state) if run else start))
        m, z = self.trunk(*(self.recycle(*start, *state) if self.passes > 1 else start))
        scores = self.distances(z)
        masked = F.cross_entropy(self.symbols(m).float().flatten(0, 2), labels.flatten())
        apart = F.cross_entropy((scores + scores.transpose(1, 2)).float().flatten(0, 2), distances.flatten())
        return MASKED_WEIGHT * masked + DISTANCE_WEIGHT * apart

    @staticmethod
    def example(size: AlphaFold2, draws: torch.Generator, meta: bool) -> Batch:
        """Random proteins: a target, its sequences with some symbols masked, the distances of all pairs."""
        shape = (size.batch, size.sequences, size.residues)
        symbols = torch.randint(MASK, shape, generator=draws)
        masked = torch.rand(shape, generator=draws) < MASKED
        pairs = (size.batch, size.residues, size.residues)
        return {
            "target": symbols[:, 0],
            "msa": torch.where(masked, MASK, symbols),
            "labels": torch.where(masked, symbols, IGNORED),
            "distances": torch.randint(BINS, pairs, generator=draws),
        }


class Embedding(nn.Module):
    """Embeds residues by their symbols, and pairs by their two symbols and their distance (algorithms 3 to 5)."""

    def __init__(self, msa: int, pair: int) -> None:
        super().__init__()
        self.target, self.msa = nn.Embedding(SYMBOLS, msa), nn.Embedding(SYMBOLS, msa)
        self.left, self.right = nn.Embedding(SYMBOLS, pair), nn.Embedding(SYMBOLS, pair)
        self.apart = nn.Embedding(2 * NEAR + 1, pair)

    def forward(self, target: torch.Tensor, msa: torch.Tensor) -> Pair:
        at = torch.arange(target.shape[1], device=target.device)
        apart = (at[:, None] - at[None, :]).clamp(-NEAR, NEAR) + NEAR
        z = self.left(target)[:, :, None] + self.right(target)[:, None] + self.apart(apart)
        return self.msa(msa) + self.target(target)[:, None], z


class Recycling(nn.Module):
    """Adds the last pass's target residues and pairs to the embeddings (algorithm 32, without positions)."""

    def __init__(self, msa: int, pair: int) -> None:
        super().__init__()
        self.norm_msa, self.norm_pair = nn.LayerNorm(msa), nn.LayerNorm(pair)

    def forward(self, m: torch.Tensor, z: torch.Tensor, last_m: torch.Tensor, last_z: torch.Tensor) -> Pair:
        first = (torch.arange(m.shape[1], device=m.device) == 0)[:, None, None].to(m.dtype)
        return m + first * self.norm_msa(last_m), z + self.norm_pair(last_z)


class Trunk(nn.Module):
    """The blocks, one after another (algorithm 6)."""

    def __init__(self, size: AlphaFold2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EvoformerBlock(size) for _ in range(size.blocks))

    def forward(self, m: torch.Tensor, z: torch.Tensor) -> Pair:
        for block in self.blocks:
            m, z = block(m, z)
        return m, z


class EvoformerBlock(nn.Module):
    """Attention along rows and columns of `m`, the outer product from `m` to `z`, and the triangle updates of `z`."""

    def __init__(self, size: AlphaFold2) -> None:
        super().__init__()
        m, z = size.msa, size.pair
        self.rows, self.columns = Rows(m, size.head, z, size.attention), Columns(m, size.head, size.attention)
        self.msa_transition = Transition(m)
        self.outer = OuterProductMean(m, z, size.outer)
        self.outgoing, self.incoming = TriangleMultiplication(z), TriangleMultiplication(z)
        self.start, self.end = (TriangleAttention(z, size.head, size.attention) for _ in range(2))
        self.pair_transition = Transition(z)

    def forward(self, m: torch.Tensor, z: torch.Tensor) -> Pair:
        m = self.rows(m, z)
        m = self.msa_transition(self.columns(m))
        z = self.outer(m, z)
        z = self.outgoing(z)
        z = self.incoming(z.transpose(1, 2)).transpose(1, 2)
        z = self.start(z)
        z = self.end(z.transpose(1, 2)).transpose(1, 2)
        return m, self.pair_transition(z)


class GatedAttention(nn.Module):
    """Gated attention within each row, with a bias from `pairs` of positions, unless their width `pair` is 0."""

    def __init__(self, width: int, head: int, pair: int, attention: str) -> None:
        super().__init__()
        self.heads, self.fused = width // head, attention == "sdpa"
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)
        if pair:
            self.bias = nn.Linear(pair, self.heads, bias=False)

    def forward(self, x: torch.Tensor, pairs: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(2, 3) for f in (self.q, self.k, self.v))
        bias = None if pairs is None else self.bias(pairs).permute(0, 3, 1, 2).unsqueeze(1)
        if self.fused:
            values = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            values = (scores if bias is None else scores + bias).softmax(-1) @ v
        return self.out(self.gate(x).sigmoid() * values.transpose(2, 3).flatten(3))


class Rows(nn.Module):
    """Adds to each residue attention to the residues of its sequence, with a bias of pairs (algorithm 7)."""

    def __init__(self, msa: int, head: int, pair: int, attention: str) -> None:
        super().__init__()
        self.norm, self.norm_pair = nn.LayerNorm(msa), nn.LayerNorm(pair)
        self.attention = GatedAttention(msa, head, pair, attention)

    def forward(self, m: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return m + self.attention(self.norm(m), self.norm_pair(z))


class Columns(nn.Module):
    """Adds to each residue attention to the same residue of all sequences (algorithm 8)."""

    def __init__(self, msa: int, head: int, attention: str) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(msa), GatedAttention(msa, head, 0, attention)

    def forward(self, m: torch.Tensor) -> torch.Tensor:
        return m + self.attention(self.norm(m).transpose(1, 2)).transpose(1, 2)


class TriangleAttention(nn.Module):
    """Adds to the edge i j attention to edges i k, with a bias of j k (algorithm 13; on transposed pairs, 14)."""

    def __init__(self, width: int, head: int, attention: str) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), GatedAttention(width, head, width, attention)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        y = self.norm(z)
        return z + self.attention(y, y)


class Transition(nn.Module):
    """Adds a feed-forward of 4 x the width to its input (algorithms 9 and 15)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class OuterProductMean(nn.Module):
    """Adds to pairs the products of their two residues, as a mean over sequences (algorithm 10)."""

    def __init__(self, msa: int, pair: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(msa)
        self.left, self.right = nn.Linear(msa, width), nn.Linear(msa, width)
        self.out = nn.Linear(width**2, pair)

    def forward(self, m: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y = self.norm(m)
        products = torch.einsum("bsic,bsjd->bijcd", self.left(y), self.right(y)) / m.shape[1]
        return z + self.out(products.flatten(3))


class TriangleMultiplication(nn.Module):
    """Adds to the edge i j the products of edges i k and j k, summed over k (algorithm 11; on transposed pairs, 12)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_sum = nn.LayerNorm(width), nn.LayerNorm(width)
        self.left, self.left_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.right, self.right_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        y = self.norm(z)
        left = self.left_gate(y).sigmoid() * self.left(y)
        right = self.right_gate(y).sigmoid() * self.right(y)
        summed = torch.einsum("bikc,bjkc->bijc", left, right)
        return z + self.gate(y).sigmoid() * self.out(self.norm_sum(summed))
