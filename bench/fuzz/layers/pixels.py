"""Attention over what an image is made of: pixels, patches, windows, rows and columns, and between image and text."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Pixels(nn.Module):
    """Self-attention over all pixels of images of one channel, as in a diffusion U-Net."""

    def __init__(self, channels: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.wide, self.back = nn.Conv2d(1, channels, 3, padding=1), nn.Conv2d(channels, 1, 1)
        self.q, self.k = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x.unsqueeze(1))
        near = F.avg_pool2d(y, 2, ceil_mode=True) if self.kind == "reduced" else y
        q, k, v = (t.flatten(2).unflatten(1, (self.heads, -1)).mT for t in (self.q(y), self.k(near), self.v(near)))
        places = torch.arange(q.shape[2], device=x.device)
        match self.kind:
            case "causal":
                z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case "masked":
                mask = (places[:, None] - places[None, :]).abs() < 7
                z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            case "plain":
                z = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
            case "grouped":
                z = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
            case _:
                z = F.scaled_dot_product_attention(q, k, v)
        return x + self.back(z.mT.flatten(1, 2).unflatten(2, x.shape[1:])).squeeze(1)


class Patches(nn.Module):
    """A vision transformer's layer: patches of an image become tokens, with a token of the class, and go back."""

    def __init__(self, hidden: int, size: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.cut, self.back = nn.Conv2d(1, hidden, size, size), nn.ConvTranspose2d(hidden, 1, size, size)
        self.qkv, self.first = nn.Linear(hidden, 3 * hidden), nn.Parameter(torch.randn(1, 1, hidden))

    def forward(self, x: Tensor) -> Tensor:
        y = self.cut(x.unsqueeze(1))
        tokens = y.flatten(2).transpose(1, 2)
        if self.kind == "first":
            tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(tokens).chunk(3, -1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=self.kind == "causal").transpose(1, 2).flatten(2) + tokens
        if self.kind == "first":
            z = z[:, 1:] * z[:, :1].sigmoid()
        return x + self.back(z.transpose(1, 2).unflatten(2, y.shape[2:])).squeeze(1)


class Windows(nn.Module):
    """Attention within windows of a grid of tokens, as in Swin: shifted, with a bias by distance, by hand."""

    def __init__(self, hidden: int, grid: tuple[int, int], window: tuple[int, int], kind: str) -> None:
        super().__init__()
        self.grid, self.window, self.kind = grid, window, kind
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        many = window[0] * window[1]
        self.bias = nn.Parameter(torch.randn(2, many, many)) if kind == "biased" else None

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (high, wide) = self.grid, self.window
        y = x.unflatten(1, self.grid)
        if self.kind == "shifted":
            y = y.roll((-(high // 2), -(wide // 2)), (1, 2))
        y = y.view(x.shape[0], rows // high, high, columns // wide, wide, -1).transpose(2, 3)
        tokens = y.reshape(-1, high * wide, x.shape[-1])
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(tokens).chunk(3, -1))
        match self.kind:
            case "plain":
                z = (q @ k.mT).softmax(-1) @ v
            case "causal":
                z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case _:
                z = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        z = z.transpose(1, 2).reshape(y.shape).transpose(2, 3).reshape(x.shape[0], rows, columns, -1)
        if self.kind == "shifted":
            z = z.roll((high // 2, wide // 2), (1, 2))
        return x + self.out(z.flatten(1, 2))


class Axial(nn.Module):
    """Attention along the rows of a grid of tokens, then along its columns."""

    def __init__(self, hidden: int, grid: tuple[int, int], is_merged: bool) -> None:
        super().__init__()
        self.grid, self.is_merged = grid, is_merged
        self.row, self.column = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, 3 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = x.unflatten(1, self.grid)
        y = y + self.along(y, self.row)
        return (y + self.along(y.transpose(1, 2), self.column).transpose(1, 2)).flatten(1, 2)

    def along(self, y: Tensor, lin: nn.Linear) -> Tensor:
        """Over the last but one dimension, with the one before it in the batch or where heads are."""
        q, k, v = lin(y.flatten(0, 1) if self.is_merged else y).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).view(y.shape)


class Cross(nn.Module):
    """Tokens look at the pixels of an image, or pixels at tokens; the image is the activations'."""

    def __init__(self, hidden: int, channels: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.wide, self.back = nn.Conv2d(1, channels, 3, 2, 1), nn.Linear(channels, hidden)
        self.text, self.k, self.v = nn.Linear(hidden, channels), nn.Linear(channels, channels), nn.Linear(channels, 4)
        self.value, self.out = nn.Linear(4, channels), nn.ConvTranspose2d(channels, 1, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        image = self.wide(x.unsqueeze(1))
        pixels, text = image.flatten(2).mT, self.text(x)
        if self.kind == "text":
            seen = F.scaled_dot_product_attention(text[:, None], self.k(pixels)[:, None], self.v(pixels)[:, None])
            return x + self.back(self.value(seen.squeeze(1)))
        if self.kind == "both":  # one sequence of both, each of which sees all
            pixels = torch.cat([pixels, text], 1)
            pixels = F.scaled_dot_product_attention(self.k(pixels)[:, None], pixels[:, None], pixels[:, None])[:, 0]
            return x + self.back(pixels[:, -x.shape[1] :])
        seen = F.scaled_dot_product_attention(pixels[:, None], self.k(text)[:, None], self.v(text)[:, None])
        z = self.value(seen.squeeze(1)).mT.unflatten(2, image.shape[2:])
        return x + self.out(z, output_size=x.shape[1:]).squeeze(1)
