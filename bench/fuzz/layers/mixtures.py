"""Mixtures of experts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Aux(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.router(x).softmax(-1)
        return x * p[..., :1], (p * p).sum(-1).mean()


class Gates(nn.Module):
    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.weight = nn.Parameter(torch.randn(experts, hidden, hidden) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.einsum("bse,bsh,ehk->bsk", self.gate(x).softmax(-1), x, self.weight)


class Routed(nn.Module):
    """Each token goes to some of the experts, through two products."""

    def __init__(self, hidden: int, experts: int, top: int) -> None:
        super().__init__()
        self.top, self.gate = top, nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, 2 * hidden) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 2 * hidden, hidden) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        score, chosen = self.gate(x).softmax(-1).topk(self.top, dim=-1)
        rows = x.unsqueeze(2).expand(-1, -1, self.top, -1).flatten(0, 2)
        inner = torch.ops.ssdsl.routed_mm(rows, self.up, chosen.flatten()).tanh()
        made = torch.ops.ssdsl.routed_mm(inner, self.down, chosen.flatten()).view(*chosen.shape, -1)
        return x + (made * score.unsqueeze(-1)).sum(2)


class Switch(nn.Module):
    """Each token goes to one expert, of which each has so many slots in a sequence; tokens without one are dropped."""

    def __init__(self, hidden: int, experts: int, slots: int) -> None:
        super().__init__()
        self.slots, self.gate = slots, nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, 2 * hidden) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 2 * hidden, hidden) * 0.2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        score = self.gate(x)
        share = score.softmax(-1)
        chosen = F.one_hot(score.argmax(-1), score.shape[-1])  # batch, token, expert
        place = (chosen.cumsum(1) * chosen).sum(-1) - 1
        slot = place.unsqueeze(-1) == torch.arange(self.slots, device=x.device)
        sent = (chosen.unsqueeze(-1) * slot.unsqueeze(-2)).to(x.dtype)
        inner = torch.einsum("bsec,bsh,ehf->ebcf", sent, x, self.up).tanh()
        made = torch.einsum("ebcf,efh->ebch", inner, self.down)
        y = torch.einsum("bsec,bse,ebch->bsh", sent, share, made)
        unequal = (chosen.to(x.dtype).mean(1) * share.mean(1)).sum(-1).mean()
        return x + y, unequal + 0.1 * score.logsumexp(-1).square().mean()
