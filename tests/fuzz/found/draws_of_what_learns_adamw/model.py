import torch
from torch import nn


class Net(nn.Module):
    """Noise around a learned mean, and chances that learn: PyTorch gives both a gradient of zeros, not none."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        noise = torch.normal(self.a(x), 0.1)
        return self.c(noise * torch.bernoulli(self.b(noise).sigmoid())).square().mean()


def net():
    torch.manual_seed(0)
    return Net().double(), {"x": torch.randn(4, 6, 3).double()}, {"x": ("batch", "seq", "feature")}
