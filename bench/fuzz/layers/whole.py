"""One number of all activations: the largest, a norm, a median; it scales them, or is a term of the loss."""

import torch
from torch import Tensor, nn


class Whole(nn.Module):
    def __init__(self, hidden: int, kind: str, scales: bool) -> None:
        super().__init__()
        self.lin, self.kind, self.scales = nn.Linear(hidden, hidden), kind, scales

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.lin(x)
        match self.kind:
            case "max":
                number = y.max()
            case "min":
                number = y.min()
            case "amax":
                number = y.amax((0, 1, 2))
            case "absolute":
                number = y.abs().max()
            case "range":
                low, high = torch.aminmax(y)
                number = high - low
            case "infinity":
                number = y.norm(float("inf"))
            case "least":
                number = torch.linalg.vector_norm(y, float("-inf"))
            case "norm":
                number = y.norm()
            case "sum of sizes":
                number = y.norm(1) / y.numel()
            case "median":
                number = y.median()
            case "quantile":
                number = y.quantile(0.3)
            case "kth":
                number = y.flatten().kthvalue(3).values
            case "top":
                number = y.flatten().topk(3).values.mean()
            case "sorted":
                number = y.flatten().sort().values[-2]
            case "place":
                number = y.flatten()[y.argmax()]
            case "logsumexp":
                number = y.logsumexp((0, 1, 2))
            case "std":
                number = y.std()
            case "count":
                number = (y > 0).sum() / y.numel() + y.mean()
            case _:
                number = y.square().mean().sqrt()
        return x + 0.5 * y / (1 + number.abs()) if self.scales else (x + y, 0.01 * number)


class Quantized(nn.Module):
    """Rounded to steps of the largest value, of everything or of each channel; the gradient goes through."""

    def __init__(self, hidden: int, of_each: bool) -> None:
        super().__init__()
        self.lin, self.of_each = nn.Linear(hidden, hidden), of_each

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        scale = (y.abs().amax((0, 1)) if self.of_each else y.abs().max()) / 15
        rounded = (y / scale).round().clamp(-16, 15) * scale
        return x + y + (rounded - y).detach()
