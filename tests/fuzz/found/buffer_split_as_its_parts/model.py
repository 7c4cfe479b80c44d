import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.back = nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.back(torch.relu(self.front(x) + x)) - y).square().mean()


def net() -> tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]:
    torch.manual_seed(0)
    names = {"x": ("batch", "hidden"), "y": ("batch", "one")}
    return Net(), {"x": torch.randn(8, 4), "y": torch.randn(8, 1)}, names
