"""A sigmoid loss over all pairs of two towers' results: its signs are a constant as large as the pairs."""

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Pairs(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(12, width), nn.Linear(8, width)
        self.scale, self.shift = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-3.0))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1)
        logits = a @ b.T * self.scale.exp() + self.shift
        signs = 2 * torch.eye(len(a)) - 1
        return -F.logsigmoid(signs * logits).sum() / len(a)


def built(batch: int) -> Built:
    axes = {"image": ("batch", "pixels"), "text": ("batch", "words")}
    return Pairs(), {"image": torch.randn(batch, 12), "text": torch.randn(batch, 8)}, axes


def pairs() -> Built:
    return built(16)


def many_pairs() -> Built:
    return built(4096)
