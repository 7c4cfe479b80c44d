"""The layers that random models are made of; a reproduction contains the text of those that it uses.

A layer takes activations [batch, seq, hidden] and gives others of that shape, or these and a term of the loss.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self, hidden: int, ffn: int, bias: bool, act: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, ffn, bias=bias), nn.Linear(ffn, hidden, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(getattr(F, self.act)(self.up(self.norm(x))))


class Plain(nn.Module):
    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


class BareMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(h, -1))
        weights = (q @ k.transpose(-1, -2) / (h // self.heads) ** 0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, s, h))


class Grouped(nn.Module):
    """Fused attention: `open`, `causal` by its flag or `masked` by a constant, of neighbours, biased, dropped."""

    def __init__(self, hidden: int, heads: int, groups: int, seq: int, kind: str) -> None:
        super().__init__()
        self.heads, self.groups, self.kind = heads, groups, kind
        size = hidden // heads
        self.q, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden)
        self.k, self.v = nn.Linear(hidden, groups * size), nn.Linear(hidden, groups * size, bias=False)
        self.bias = nn.Parameter(torch.randn(heads, seq, seq)) if kind == "biased" else None

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q = self.q(x).view(b, s, self.heads, -1).transpose(1, 2)
        k, v = (p(x).view(b, s, self.groups, -1).transpose(1, 2) for p in (self.k, self.v))
        if self.kind != "open":
            k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        places = torch.arange(s, device=x.device)
        ahead = places[:, None] - places[None, :]
        match self.kind:
            case "causal":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case "masked":
                mask = torch.zeros_like(ahead, dtype=x.dtype).masked_fill(ahead < 0, torch.finfo(x.dtype).min)
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            case "near":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=(ahead >= 0) & (ahead < 3))
            case "biased":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
            case "dropped":
                y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
            case _:
                y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(b, s, h))


class Recurrent(nn.Module):
    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(hidden, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


class Drops(nn.Module):
    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.lin, self.kind = nn.Linear(hidden, hidden), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        match self.kind:
            case "attention":
                q = y.unflatten(-1, (2, -1)).transpose(1, 2)
                y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).transpose(1, 2).flatten(2)
            case "path":
                y = y * x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.7)
            case "channels":
                y = F.dropout1d(y.transpose(1, 2), 0.3).transpose(1, 2)
            case "noise":
                y = y * torch.rand_like(y) + torch.randn(y.shape[1:], dtype=y.dtype, device=y.device)
            case "slopes":
                y = F.rrelu(y, training=True)
            case _:
                y = F.dropout(y.tanh(), 0.3)
        return x + y


class Conv(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.wide, self.back = nn.Conv1d(hidden, inner, 3, padding=1), nn.Conv1d(inner, hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(self.wide(x.transpose(1, 2)).relu()).transpose(1, 2)


class Batched(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Image(nn.Module):
    """The activations as images of one channel: convolutions, statistics of the batch, pooling, other resolutions."""

    def __init__(self, channels: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.wide, self.back = nn.Conv2d(1, channels, 3, padding=1), nn.Conv2d(channels, 1, 1, bias=False)
        match kind:
            case "norm":
                self.more = nn.BatchNorm2d(channels)
            case "groups":
                self.more = nn.GroupNorm(2, channels)
            case "strided":
                self.more = nn.Conv2d(channels, channels, 3, 2, 1, groups=2)
            case "dilated":
                self.more = nn.Conv2d(channels, channels, 3, padding=2, dilation=2)
            case "even":
                self.more = nn.Conv2d(channels, channels, 4, padding="same")
            case "large":
                self.more = nn.Conv2d(channels, channels, (7, 1), padding=(3, 0))
            case "transposed":
                self.more = nn.ConvTranspose2d(channels, channels, 3, 2, 1)
            case _:
                self.more = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.more(self.wide(x.unsqueeze(1)))
        match self.kind:
            case "pool":
                y = F.interpolate(F.avg_pool2d(y, (1, 2)), scale_factor=(1.0, 2.0))
            case "maximum":
                y = F.interpolate(F.max_pool2d(y, 3, 2, 1, ceil_mode=True), x.shape[1:], mode="bilinear")
            case "strided" | "transposed":
                y = F.interpolate(y, x.shape[1:])
            case "drop":
                y = F.dropout2d(y, 0.3)
        return x + self.back(y.relu()).squeeze(1)


class Position(nn.Module):
    def __init__(self, seq: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(seq, hidden) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Moves(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "flip":
                return x * 0.5 + x.flip(1)
            case "roll":
                return x + x.roll(1, 1)
            case "roll batch":
                return x + 0.5 * x.roll(1, 0)
            case "cat":
                a, b = x.chunk(2, -1)
                return torch.cat([b, a * 2], -1)
            case "stack":
                return torch.stack([x, x * 0.5], 2).mean(2)
            case "shift":
                return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) + x
            case "mean":
                return x - x.mean(1, keepdim=True)
            case _:
                return (x.transpose(0, 1) * 2).transpose(0, 1)


class All(nn.Module):
    """Operators that need all of a dimension, the batch or the sequence, or whose parts tell each other something."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.kind, self.dim = kind, dim

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "cumsum":
                return x + 0.1 * x.cumsum(self.dim)
            case "cumprod":
                return x * (1 + 0.1 * x.tanh()).cumprod(self.dim)
            case "logcumsumexp":
                return x + 0.1 * x.logcumsumexp(self.dim)
            case "topk":
                places = torch.arange(x.shape[self.dim]).view(-1, *[1] * (x.dim() - 1 - self.dim))
                found = (x + 0.01 * places).topk(min(2, x.shape[self.dim]), self.dim)  # of equals torch takes any
                return x - 0.5 * found.values.sum(self.dim, keepdim=True)
            case "sort":
                return x.sort(self.dim).values + x
            case "max":
                return x - 0.5 * x.max(self.dim, keepdim=True).values
            case "var":
                return x / (1 + x.var(self.dim, keepdim=True))
            case "softmax":
                return x + x.softmax(self.dim)
            case _:
                return x - 0.1 * x.logsumexp(self.dim, keepdim=True)


class Unlisted(nn.Module):
    """Operators without a row: what of them can be split is found by experiment."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "batch":
                return x + 0.1 * x.renorm(2, 0, 1.0)
            case "hidden":
                return x + 0.1 * x.renorm(2, 2, 1.0)
            case "kthvalue":
                return x - x.kthvalue(1, 1, keepdim=True).values
            case "trace":
                return x * (1 + 0.01 * (x[:, 0].T @ x[:, 0]).trace())
            case _:
                y = x.transpose(1, 2) @ x + torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
                return x + 0.1 * torch.linalg.inv_ex(y)[0].mean(1, keepdim=True)


class Rows(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.lin(x.reshape(-1, x.shape[-1]))
        return rows.tanh().view(x.shape) + x


class MinMax(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        return torch.minimum(torch.maximum(x, y), y.clamp(-1, 1) + 1)


class Frozen(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(hidden))
        self.unused = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lin(x) * self.scale


class Detached(nn.Module):
    def __init__(self, hidden: int, quiet: bool) -> None:
        super().__init__()
        self.teacher, self.student, self.quiet = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), quiet

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.quiet:
            with torch.no_grad():
                target = self.teacher(x)
        else:
            target = self.teacher(x).detach()
        return x + target * 0.1, (self.student(x) - target).square().mean()


class Tracked(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x * 0.9


class Cast(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lin(x).float().sin().double()


class Aux(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.router(x).softmax(-1)
        return x * p[..., :1], (p * p).sum(-1).mean()


class Product(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.lin(x)
        return x + y, y.mean() * x.square().mean()


class Contrast(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled = x.mean(1)
        logits = self.a(pooled) @ self.b(pooled).t()
        return x, F.cross_entropy(logits, torch.arange(x.shape[0], device=x.device))


class OverBatch(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x.mean(1))
        return x + ((h @ h.t()).softmax(-1) @ h).unsqueeze(1)


class Twice(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(self.lin(x).tanh())


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
