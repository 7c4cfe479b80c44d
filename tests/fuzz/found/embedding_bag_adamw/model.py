import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A bag whose operator has results that nothing reads, and that know nothing of `hidden`."""

    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(12, 8, mode="mean", padding_idx=2), nn.Linear(8, 5)

    def forward(self, t, y):
        return F.cross_entropy(self.out(self.bag(t)), y)


def net():
    torch.manual_seed(0)
    inputs = {"t": torch.randint(12, (4, 6)), "y": torch.randint(5, (4,))}
    return Net().double(), inputs, {"t": ("batch", "seq"), "y": ("batch",)}
