"""A GPT whose feed-forwards are, in some layers, mixtures of experts with a router and a capacity."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.moe_gpt import MoeGpt
from ssdsl.model.zoo.nets.inputs import Batch


class MoeGptNet(nn.Module):
    """Returns the mean cross-entropy of the next token plus the routers' penalties."""

    def __init__(self, size: MoeGpt) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocab, size.hidden)
        self.places = nn.Embedding(size.seq, size.hidden)
        ffn = (partial(Mixture if size.has_experts(layer) else _plain, size) for layer in range(size.layers))
        self.blocks = nn.ModuleList(TransformerBlock(size.hidden, size.heads, make) for make in ffn)
        self.norm = nn.LayerNorm(size.hidden)
        for weight in (self.words.weight, self.places.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        penalties = []
        for block in self.blocks:
            x, penalty = block(x)
            penalties += [] if penalty is None else [penalty]
        scores = F.linear(self.norm(x), self.words.weight)
        following = F.pad(labels, (0, 1), value=-100)[:, 1:]
        loss = F.cross_entropy(scores.float().flatten(0, 1), following.flatten())
        return sum(penalties, loss)

    @staticmethod
    def example(size: MoeGpt, draws: torch.Generator, meta: bool) -> Batch:
        """Random tokens; the labels are the same, the model shifts them by one."""
        tokens = torch.randint(size.vocab, (size.batch, size.seq), generator=draws)
        return {"input_ids": tokens, "labels": tokens.clone()}


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward or a mixture of experts, which `ffn` makes, each with a residual; gives the
    router's penalty too."""

    def __init__(self, hidden: int, heads: int, ffn: "Callable[[], FeedForward | Mixture]") -> None:
        super().__init__()
        self.norm_attention, self.norm_ffn = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.ffn = Attention(hidden, heads), ffn()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = x + self.attention(self.norm_attention(x))
        y = self.ffn(self.norm_ffn(x))
        y, penalty = y if isinstance(self.ffn, Mixture) else (y, None)
        return x + y, penalty


class Attention(nn.Module):
    """Every token attends to itself and to those before it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def _plain(size: MoeGpt) -> FeedForward:
    return FeedForward(size.hidden, size.ffn)


class Experts(nn.Module):
    """A feed-forward without biases for each expert."""

    def __init__(self, experts: int, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The results of the experts for the tokens in their slots: [expert, group, slot, hidden], like x."""
        inner = F.gelu(torch.einsum("egsh,ehf->egsf", x, self.up))
        return torch.einsum("egsf,efh->egsh", inner, self.down)


class Mixture(nn.Module):
    """Sends each token to the `top` experts that the router scores highest, if they have a slot left for it.

    Tokens compete within a group for `slots` slots of each expert, in their order: first all tokens for the best expert
    of each, then all for the second best. Tokens without a slot get zeros here: the residual connection carries them
    past. Among experts with exactly equal scores a token takes the one with the lowest number, as `argmax` promises. A
    shared feed-forward, if there is one, sees all tokens.
    """

    def __init__(self, size: MoeGpt) -> None:
        super().__init__()
        self.grouping, self.slots, self.top = size.group, size.slots, size.top
        self.balance, self.z = size.balance, size.z
        self.router = nn.Linear(size.hidden, size.experts, bias=False)
        self.experts = Experts(size.experts, size.hidden, size.ffn)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)
        self.shared = FeedForward(size.hidden, size.shared * size.ffn) if size.shared else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the experts' results, shaped as x (batch, seq, hidden), and the router's penalty."""
        groups = x if self.grouping == "sequence" else x.flatten(0, 1).unsqueeze(0)
        scores = self.router(groups).float()  # group, token, expert
        shares = scores.softmax(-1)
        chosen = self._chosen(scores)
        sent = torch.stack(self._sent(chosen)).sum(0).to(x.dtype)  # group, token, expert, slot
        outputs = self.experts(torch.einsum("gtes,gth->egsh", sent, groups))
        gates = shares * torch.stack(chosen).sum(0)
        if self.top > 1:
            gates = gates / gates.sum(-1, keepdim=True)  # as in GShard; of one expert it is the probability (Switch)
        y = torch.einsum("gtes,egsh->gth", sent * gates.to(x.dtype).unsqueeze(-1), outputs).reshape(x.shape)
        return y if self.shared is None else y + self.shared(x), self._penalty(scores, shares, chosen[0])

    def _chosen(self, scores: torch.Tensor) -> list[torch.Tensor]:
        """The best expert of each token, the second best, ..., as masks (group, token, expert)."""
        chosen: list[torch.Tensor] = []
        for _ in range(self.top):
            chosen.append(F.one_hot(scores.argmax(-1), scores.shape[-1]))
            scores = scores.masked_fill(chosen[-1] > 0, -torch.inf)
        return chosen

    def _sent(self, chosen: list[torch.Tensor]) -> list[torch.Tensor]:
        """For each choice, one-hot masks of the tokens' slots (group, token, expert, slot); zeros if none is left."""
        taken = torch.zeros_like(chosen[0][:, :1])
        slots, sent = torch.arange(self.slots, device=taken.device), []
        for choice in chosen:
            place = ((choice.cumsum(1) + taken) * choice).sum(-1) - 1  # the token's number among those of its expert
            sent.append(choice.unsqueeze(-1) * (place.unsqueeze(-1) == slots).unsqueeze(-2))
            taken = taken + choice.sum(1, keepdim=True)
        return sent

    def _penalty(self, scores: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Switch's equation 4 (experts x the sum of share of tokens x mean probability) plus the z-loss of ST-MoE."""
        unequal = (chosen.float().mean(1) * shares.mean(1)).sum(-1).mean() * chosen.shape[-1]
        return self.balance * unequal + self.z * scores.logsumexp(-1).square().mean()
