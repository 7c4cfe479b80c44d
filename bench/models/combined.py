"""Models of our own in which features meet: random numbers with loops, ties, checkpoints, buffers and odd losses."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import ssdsl
from bench.models.nasty import IMAGES, SEQUENCES, VECTORS, B, H, Nasty, S, V


@torch.library.custom_op("ssdsl_bench::softcap", mutates_args=())
def softcap(x: Tensor, scale: Tensor) -> Tensor:
    """An operator of our own: rows are capped by a learned number for each column."""
    return (x / scale).tanh() * scale * (1 + x.abs().amax(-1, keepdim=True)).rsqrt()


@softcap.register_fake
def _softcap_fake(x: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(x)


def _softcap_backward(ctx: object, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, scale = (t.detach().requires_grad_() for t in ctx.saved)  # type: ignore[attr-defined]
    with torch.enable_grad():
        y = (x / scale).tanh() * scale * (1 + x.abs().amax(-1, keepdim=True)).rsqrt()
    made = torch.autograd.grad(y, (x, scale), grad)
    return made[0], made[1]


def _softcap_setup(ctx: object, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.saved = inputs  # type: ignore[attr-defined]


softcap.register_autograd(_softcap_backward, setup_context=_softcap_setup)
ssdsl.add_rows([ssdsl.Op("ssdsl_bench::softcap", "... n!, n! -> ... n!", module="bench.models.combined")])


class Block(nn.Module):
    """Attention and a feed-forward, each with dropout."""

    def __init__(self, heads: int = 4, p: float = 0.2) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(H), nn.LayerNorm(H)])
        self.qkv, self.out = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.up, self.down, self.drop = nn.Linear(H, 2 * H), nn.Linear(2 * H, H), nn.Dropout(p)
        self.heads, self.p = heads, p

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](h)).view(*h.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        h = h + self.drop(self.out(made.transpose(1, 2).flatten(2)))
        return h + self.drop(self.down(self.drop(F.gelu(self.up(self.norms[1](h))))))


class Ratio(nn.Module):
    """A loss that is a ratio of masked means, behind blocks that drop."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(V, H), nn.ModuleList([Block(), Block()])
        self.head, self.value = nn.Linear(H, V), nn.Linear(H, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        each = F.cross_entropy(self.head(h).flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        odd, sure = (y % 3 == 1).float(), self.value(h).squeeze(-1).sigmoid()
        return (each * odd).sum() / odd.sum() / ((sure * (1 - odd)).sum() / (1 - odd).sum() + 0.5)


class CustomTied(nn.Module):
    """An operator that nobody listed between dropouts; the embedding is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(V, H), nn.Linear(H, 2 * H), nn.Linear(2 * H, H)
        self.scale, self.drop = nn.Parameter(torch.ones(2 * H)), nn.Dropout(0.3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.drop(self.embed(x))
        h = h + self.down(self.drop(softcap(self.up(h), self.scale)))
        return F.cross_entropy(F.linear(h, self.embed.weight).flatten(0, 1), y.flatten())


class NoisyMixture(nn.Module):
    """Noisy gates, dropout in the experts, a loss for balance and one for the router's logits."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, H), nn.Linear(H, V)
        self.gate, self.noise = nn.Linear(H, experts, bias=False), nn.Linear(H, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, H, 2 * H) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 2 * H, H) * 0.2)
        self.experts = experts

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.dropout(self.embed(x), 0.1)
        flat = h.flatten(0, 1)
        logits = self.gate(flat) + torch.randn_like(self.gate(flat)) * F.softplus(self.noise(flat))
        weight, chosen = logits.softmax(-1).topk(2)
        rows = torch.arange(flat.shape[0]).repeat_interleave(2)
        made = F.dropout(torch.ops.ssdsl.routed_mm(flat[rows], self.up, chosen.flatten()).relu(), 0.2)
        made = torch.ops.ssdsl.routed_mm(made, self.down, chosen.flatten()).view(-1, 2, H)
        h = h + (made * (weight / weight.sum(-1, keepdim=True))[..., None]).sum(1).view_as(h)
        load = F.one_hot(chosen, self.experts).float().mean((0, 1))
        balance = self.experts * (load * logits.softmax(-1).mean(0)).sum()
        router = logits.logsumexp(-1).square().mean()
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten()) + 0.01 * balance + 0.001 * router


class DeepStatistics(nn.Module):
    """Batch norm with a cumulative average, stochastic depth that drops whole images, channels that are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8, momentum=None) for _ in range(3))
        self.drop, self.head = nn.Dropout2d(0.2), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.enter(x)
        for number, (block, norm) in enumerate(zip(self.blocks, self.norms, strict=True)):
            keep = 1 - 0.1 * (number + 1)
            alive = torch.empty(h.shape[0], 1, 1, 1).bernoulli_(keep) / keep
            h = h + alive * self.drop(norm(block(h)).relu())
        return F.cross_entropy(self.head(h.mean((2, 3))), y)


class Prompted(nn.Module):
    """Inputs of which one has no batch: candidates that all rows share, dropped out once for all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(V, H), nn.Linear(H, H), nn.Linear(H, H)
        self.up, self.down = nn.Linear(H, 2 * H), nn.Linear(2 * H, H)

    def forward(self, x: Tensor, y: Tensor, bank: Tensor, scale: Tensor) -> Tensor:
        h = self.embed(x).mean(1)
        h = h + self.down(F.dropout(self.up(h).relu(), 0.25))
        shared = F.dropout(self.k(bank), 0.25)
        return F.cross_entropy(self.q(h) @ shared.T * scale, y[:, 0] % bank.shape[0]) + 0.01 * shared.square().mean()


class Nested(nn.Module):
    """Lists in lists and dictionaries, one module called three times with dropout, one under two names."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Sequential(nn.Linear(H, 2 * H), nn.GELU(), nn.Dropout(0.3), nn.Linear(2 * H, H))
        self.grid = nn.ModuleList(nn.ModuleList([nn.Linear(H, H), shared]) for _ in range(2))
        self.extra = nn.ModuleDict({"a": nn.ModuleDict({"b": shared}), "c": nn.Linear(H, 2)})
        self.scales = nn.ParameterDict({"one": torch.ones(H), "two": torch.full((), 0.5)})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for plain, shared in self.grid:
            x = x + shared(plain(x).tanh() * self.scales["one"])
        x = self.extra["a"]["b"](x) * self.scales["two"]
        return F.cross_entropy(self.extra["c"](x), y)


class Checkpointed(nn.Module):
    """Activation checkpoints inside the user's forward, dropout within and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(V, H), nn.ModuleList([Block(), Block()]), nn.Linear(H, V)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.dropout(self.embed(x), 0.1)
        for block in self.blocks:
            h = F.dropout(checkpoint(block, h, use_reentrant=False), 0.1)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class SharedKeys(nn.Module):
    """Complex rotations, queries in groups, and keys and values that the second layer takes from the first."""

    def __init__(self, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, H), nn.Linear(H, V, bias=False)
        self.q = nn.ModuleList(nn.Linear(H, H, bias=False) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(H, H, bias=False) for _ in range(2))
        self.kv, self.heads, self.groups = nn.Linear(H, 2 * groups * (H // heads), bias=False), heads, groups
        angles = torch.outer(torch.arange(S).float(), 50.0 ** -torch.arange(0, 1, 0.5))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def rotate(self, t: Tensor) -> Tensor:
        made = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * self.turn
        return torch.view_as_real(made).flatten(-2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        k, v = self.kv(h).view(*x.shape, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        k = self.rotate(k)
        for project, out in zip(self.q, self.out, strict=True):
            q = self.rotate(project(h).view(*x.shape, self.heads, -1).transpose(1, 2))
            made = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, dropout_p=0.1)
            h = h + F.dropout(out(made.transpose(1, 2).flatten(2)), 0.1)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Lora(nn.Module):
    """Frozen weights with small trained ones beside them, behind a dropout of their own."""

    def __init__(self, rank: int = 3) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(H, 2 * H), nn.Tanh(), nn.Linear(2 * H, H)).requires_grad_(False)
        self.a = nn.ParameterList([torch.randn(rank, H) * 0.2, torch.randn(rank, 2 * H) * 0.2])
        self.b = nn.ParameterList([torch.randn(2 * H, rank) * 0.1, torch.randn(H, rank) * 0.1])
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(H, 2)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for number, layer in enumerate((self.base[0], self.base[2])):
            x = layer(x) + 2.0 * F.linear(F.linear(self.drop(x), self.a[number]), self.b[number])
            x = self.base[1](x) if number == 0 else x
        return F.cross_entropy(self.head(x), y)


class Edges(nn.Module):
    """Dropout of 0, of 1 and of a training flag; smoothed labels, weights of classes, labels that do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.none, self.all = nn.Embedding(V, H), nn.Dropout(0.0), nn.Dropout(1.0)
        self.some, self.head = nn.Dropout(0.4), nn.Linear(H, V)
        self.register_buffer("weight", torch.linspace(0.5, 1.5, V))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.none(self.embed(x))
        h = h + self.all(h) + F.dropout(h, 0.5, training=False) + self.some(h)
        h = F.dropout(h, 0.2, training=self.training) + F.dropout(h, 1.0)
        logits = self.head(h).transpose(1, 2)
        return F.cross_entropy(logits, y, weight=self.weight, ignore_index=3, label_smoothing=0.1)


class SharedMask(nn.Module):
    """One mask for two towers, drawn with chances that stand in a buffer; another one over the rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(H, 2 * H), nn.ReLU(), nn.Linear(2 * H, H))
        self.two, self.head = nn.Sequential(nn.Linear(H, 2 * H), nn.Tanh(), nn.Linear(2 * H, H)), nn.Linear(H, 2)
        self.register_buffer("chance", torch.linspace(0.3, 0.9, H))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = torch.bernoulli(self.chance.expand_as(x)) / self.chance
        rows = torch.rand(x.shape[0], 1) < self.chance.mean()
        a, b = self.one(x * mask), self.two(x.flip(-1) * mask)
        return F.cross_entropy(self.head(torch.where(rows, a, b)), y) + 0.1 * F.mse_loss(a, b.detach())


class Quantised(nn.Module):
    """Codes by Gumbel-softmax, straight through, with a penalty that keeps them all in use."""

    def __init__(self, codes: int = 6) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(H, 2 * codes), nn.Linear(2 * H, H)
        self.book, self.codes = nn.Parameter(torch.randn(codes, H)), codes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.encode(x).view(-1, 2, self.codes)
        chosen = F.gumbel_softmax(logits, tau=0.7, hard=True)
        used = logits.softmax(-1).mean((0, 1))
        penalty = (used * (used * self.codes).log()).sum()
        back = self.decode((chosen @ self.book).flatten(1))
        return F.mse_loss(back, x) + 0.1 * penalty + 0 * y.sum()


class Variational(nn.Module):
    """A reparameterised code, its divergence with free bits, several samples weighed by importance."""

    def __init__(self, code: int = 4, samples: int = 3) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(H, 2 * H), nn.Tanh(), nn.Linear(2 * H, 2 * code))
        self.decode = nn.Sequential(nn.Linear(code, 2 * H), nn.Tanh(), nn.Linear(2 * H, H))
        self.samples = samples

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, -1)
        deviation = (0.5 * log_variance).exp()
        noise = torch.randn(self.samples, *mean.shape)
        back = self.decode(mean + deviation * noise)
        fit = (back - x).square().sum(-1)
        bound = -(-fit).logsumexp(0).mean() + math.log(self.samples)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean(0).clamp(min=0.05).sum()
        again = F.mse_loss(self.decode(mean + deviation * torch.randn_like(deviation)), x)
        return bound + divergence + again + 0 * y.sum()


class Diffusion(nn.Module):
    """A step of noise for each image, drawn; its embedding, looked up; condition dropped for some."""

    def __init__(self, steps: int = 10) -> None:
        super().__init__()
        self.time, self.label = nn.Embedding(steps, 8), nn.Embedding(3, 8)
        self.enter, self.deep, self.leave = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 3, 3, 1, 1)
        self.norm, self.steps = nn.GroupNorm(2, 8), steps
        self.register_buffer("kept", torch.linspace(0.99, 0.8, steps).cumprod(0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        t = torch.randint(self.steps, (x.shape[0],))
        noise, kept = torch.randn_like(x), self.kept[t][:, None, None, None]
        y = torch.where(torch.rand_like(y, dtype=torch.float) < 0.2, 2, y)
        h = self.enter(kept.sqrt() * x + (1 - kept).sqrt() * noise)
        h = h + (self.time(t) + self.label(y))[:, :, None, None]
        h = self.leave(F.silu(self.norm(self.deep(F.silu(h)))))
        weight = (kept / (1 - kept)).clamp(max=5).flatten()
        return (weight * (h - noise).square().mean((1, 2, 3))).sum() / weight.sum()


class Masked(nn.Module):
    """Half of the patches are seen: an order drawn for each image, gathers, and the places of what is missing."""

    def __init__(self, patch: int = 2) -> None:
        super().__init__()
        self.cut, self.encode = nn.Conv2d(3, H, patch, patch), Block()
        self.decode, self.head = Block(), nn.Linear(H, 3 * patch * patch)
        self.token, self.place, self.patch = nn.Parameter(torch.zeros(H)), nn.Parameter(torch.randn(16, H)), patch

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        patches = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        h = self.cut(x).flatten(2).transpose(1, 2) + self.place
        order = torch.rand(h.shape[:2]).argsort(1)
        back, seen = order.argsort(1), order[:, : h.shape[1] // 2]
        h = self.encode(h.gather(1, seen[..., None].expand(-1, -1, H)))
        full = torch.cat([h, self.token.expand(h.shape[0], order.shape[1] - h.shape[1], -1)], 1)
        full = self.decode(full.gather(1, back[..., None].expand(-1, -1, H)) + self.place)
        hidden = (back >= h.shape[1]).float()
        each = (self.head(full) - patches).square().mean(-1)
        return (each * hidden).sum() / hidden.sum() + 0 * y.sum()


class Scheduled(nn.Module):
    """A cell in a loop that reads at each step either the truth or its own guess, by the fall of a coin."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(V, H), nn.GRUCell(H, H), nn.Linear(H, V)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, read, losses = x.new_zeros(x.shape[0], H, dtype=torch.float), x[:, 0], []
        for step in range(x.shape[1]):
            h = self.cell(F.dropout(self.embed(read), 0.1), h)
            logits = self.head(h)
            losses.append(F.cross_entropy(logits, y[:, step], reduction="none"))
            guess = torch.multinomial(logits.detach().softmax(-1), 1).squeeze(-1)
            read = torch.where(torch.rand(x.shape[0]) < 0.5, y[:, step], guess)
        return torch.stack(losses, 1).sum(1).mean()


class Averages(nn.Module):
    """Buffers that move with each batch: a codebook by averages, a centre, a count, a teacher's weights."""

    def __init__(self, codes: int = 5) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(H, H), nn.Linear(H, 2)
        self.register_buffer("book", torch.randn(codes, H))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("centre", torch.zeros(H))
        self.register_buffer("teacher", torch.randn(H, H) * 0.1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.dropout(self.encode(x - self.centre), 0.2)
        chosen = F.one_hot(torch.cdist(h.detach(), self.book).argmin(1), len(self.book)).to(h)
        quantised = h + (chosen @ self.book - h).detach()
        commitment = F.mse_loss(h, (chosen @ self.book).detach())
        teacher = F.linear(x, self.teacher)
        with torch.no_grad():
            self.count.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.book.lerp_(chosen.T @ h / (chosen.sum(0)[:, None] + 1), 0.1)
            self.centre.copy_(0.9 * self.centre + 0.1 * x.mean(0))
            self.teacher.mul_(0.9).add_(self.encode.weight.detach(), alpha=0.1)
            self.steps.add_(1)
        return F.cross_entropy(self.head(quantised), y) + 0.25 * commitment + 0.1 * F.mse_loss(h, teacher)


class Standardised(nn.Module):
    """Convolutions of standardised weights, a spectral norm whose vectors move, an orthogonal-ish penalty, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.gain = nn.Parameter(torch.ones(8, 1, 1, 1))
        self.middle = parametrizations.spectral_norm(nn.Linear(8, H))
        self.head, self.norm = parametrizations.weight_norm(nn.Linear(H, 2)), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for conv in (self.one, self.two):
            deviation, mean = torch.std_mean(conv.weight, dim=(1, 2, 3), keepdim=True)
            x = F.conv2d(x, (conv.weight - mean) / (deviation + 1e-5) * self.gain, conv.bias, padding=1)
            x = F.feature_alpha_dropout(F.selu(self.norm(x)), 0.1, True)
        return F.cross_entropy(self.head(F.alpha_dropout(self.middle(x.mean((2, 3))), 0.2, True)), y)


class Mixed(nn.Module):
    """Weights in bfloat16 beside others in float32, an autocast region with dropout, a loss in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up = nn.Linear(H, H), nn.Linear(H, 2 * H, dtype=torch.bfloat16)
        self.down, self.head = nn.Linear(2 * H, H, dtype=torch.bfloat16), nn.Linear(H, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.enter(x)
        h = h + self.down(F.dropout(self.up(h.bfloat16()).relu(), 0.25)).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = F.dropout(self.head(F.dropout(h, 0.25)), 0.1)
        return F.cross_entropy(logits.float(), y)


class Scalars(nn.Module):
    """Weights without axes, of one element and of none; tensors without elements, also dropped out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.zeros(1))
        self.nothing = nn.Parameter(torch.zeros(0, H))
        self.up, self.down = nn.Linear(H, 2 * H), nn.Linear(2 * H, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        empty = F.dropout(x[:, :0], 0.5)
        h = torch.cat([empty, x * self.scale.exp() + self.shift, x[:, H:]], -1)
        h = F.dropout(h * torch.rand(()) + torch.rand(1), 0.2)
        made = self.down(self.up(h).relu())
        return F.cross_entropy(made, y) + self.scale.square() + self.nothing.sum() + empty.sum()


class Strided(nn.Module):
    """Views of every kind: windows, diagonals, steps, expansions that are written to, rolls, narrow parts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.window, self.head = nn.Embedding(V, H), nn.Linear(3 * H, H), nn.Linear(H, V)
        self.bias = nn.Parameter(torch.randn(2 * S - 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.dropout(self.embed(x), 0.1)
        padded = F.pad(h, (0, 0, 1, 1))
        h = h + self.window(padded.unfold(1, 3, 1).flatten(2)).tanh()
        places = torch.arange(S)[:, None] - torch.arange(S) + S - 1
        scores = (h @ h.mT) / 4 + self.bias[places]
        scores = scores + torch.diag_embed(scores.diagonal(dim1=1, dim2=2)) * 0.1
        h = h + scores.softmax(-1) @ h.roll(1, 1)
        odd, even = h[:, 1::2], h[:, ::2]
        h = torch.stack([even + odd, even - odd], 2).flatten(1, 2).clone()
        h[:, 0] = h[:, 0] * 2
        h.narrow(1, 1, 2).mul_(0.5)
        return F.cross_entropy(self.head(h).movedim(2, 1), y)


class Lengths(nn.Module):
    """Labels as lengths: masks by arange, means and last places by them, a loss over what they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(V, H), nn.Linear(H, H), nn.Linear(2 * H, V)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        length = y[:, 0] % x.shape[1] + 1
        mask = torch.arange(x.shape[1]) < length[:, None]
        h = F.dropout(self.mix(self.embed(x)).relu(), 0.2)
        mean = (h * mask[..., None]).sum(1) / length[:, None]
        last = h[torch.arange(x.shape[0]), length - 1]
        logits = self.head(torch.cat([mean, last], -1))[:, None].expand(-1, x.shape[1], -1)
        return F.cross_entropy(logits.flatten(0, 1), y.masked_fill(~mask, -100).flatten())


class Hybrid(nn.Module):
    """Convolutions and attention over their places in turn, with dropout of channels and of places."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.depth = nn.Conv2d(3, H, 3, 2, 1), nn.Conv2d(H, H, 3, padding=1, groups=H)
        self.attend, self.norm = nn.MultiheadAttention(H, 4, dropout=0.2, batch_first=True), nn.LayerNorm(H)
        self.head = nn.Linear(H, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.dropout2d(self.enter(x).relu(), 0.1)
        h = h + self.depth(h)
        flat = self.norm(h.flatten(2).transpose(1, 2))
        flat = flat + self.attend(flat, flat, flat, need_weights=False)[0]
        keep = F.dropout(torch.ones(x.shape[0], flat.shape[1], 1), 0.2)
        return F.cross_entropy(self.head((flat * keep).amax(1)), y)


class Recurrent(nn.Module):
    """Recurrent layers of torch that drop between them, in both directions, with states that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.start = nn.Embedding(V, H), nn.Parameter(torch.zeros(4, 1, H))
        self.first = nn.LSTM(H, H, 2, dropout=0.3, batch_first=True)
        self.second = nn.GRU(H, H, 2, dropout=0.2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * H, V)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, _ = self.first(self.embed(x))
        h, last = self.second(F.dropout(h, 0.1), self.start.expand(-1, x.shape[0], -1).contiguous())
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten()) + 0.01 * last.square().mean()


class Contrast(nn.Module):
    """Two views by noise and dropout, contrasted over the whole batch, both ways, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(H, 2 * H), nn.BatchNorm1d(2 * H), nn.ReLU(), nn.Dropout(0.2))
        self.body.append(nn.Linear(2 * H, H))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one, two = (F.normalize(self.body(x + 0.1 * torch.randn_like(x)), dim=-1) for _ in range(2))
        both = torch.cat([one, two])
        scores = both @ both.T * self.temperature.exp()
        scores = scores.masked_fill(torch.eye(2 * x.shape[0], dtype=torch.bool), float("-inf"))
        other = torch.arange(2 * x.shape[0]).roll(x.shape[0])
        return F.cross_entropy(scores, other) + 0 * y.sum()


class Mixup(nn.Module):
    """Rows mixed with others in an order that is drawn, negatives that are drawn, and the exponential of a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(H, 2 * H), nn.RReLU(), nn.Linear(2 * H, H)), nn.Linear(H, 2)
        self.items, self.weigh = nn.Embedding(V, H), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        order, share = torch.randperm(x.shape[0]), torch.rand(()) * 0.5
        h = self.body((1 - share) * x + share * x[order])
        logits = self.head(h)
        mixed = (1 - share) * F.cross_entropy(logits, y) + share * F.cross_entropy(logits, y[order])
        false = self.items(torch.randint(V, (x.shape[0], 3)))
        rank = F.softplus(torch.einsum("bh,bnh->bn", h, false) - (h * self.items(y)).sum(-1, keepdim=True)).mean()
        return ((-self.weigh).exp() * torch.stack([mixed, rank.exp().log1p()]) + self.weigh).sum()


class Transcribed(nn.Module):
    """Connectionist temporal classification behind strided convolutions; the lengths come from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.head = nn.Embedding(V, H), nn.Conv1d(H, H, 3, padding=1), nn.Linear(H, V)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.dropout1d(self.embed(x).transpose(1, 2), 0.1)
        h = self.conv(h).relu().transpose(1, 2)
        scores = self.head(F.dropout(h, 0.1)).log_softmax(-1).transpose(0, 1)
        wanted = y[:, :2].clamp(min=1)
        lengths = torch.full((x.shape[0],), x.shape[1])
        return F.ctc_loss(scores, wanted, lengths, 1 + y[:, 2] % 2, zero_infinity=True)


def _prompted(g: torch.Generator) -> dict[str, Tensor]:
    named = {name: torch.randint(V, (B, S), generator=g) for name in ("x", "y")}
    return named | {"bank": torch.randn(5, H, generator=g), "scale": torch.rand((), generator=g)}


PROMPTED = SEQUENCES | {"bank": ("candidate", "feature"), "scale": ()}

COMBINED: dict[str, Nasty] = {
    "ratio": Nasty(Ratio, SEQUENCES, ("heads", "ffn")),
    "customtied": Nasty(CustomTied, SEQUENCES, ("ffn",)),
    "noisymixture": Nasty(NoisyMixture, SEQUENCES, ("ffn",)),
    "statistics": Nasty(DeepStatistics, IMAGES),
    "prompted": Nasty(Prompted, PROMPTED, ("ffn",), _prompted),
    "nested": Nasty(Nested, VECTORS, ("ffn",)),
    "checkpointed": Nasty(Checkpointed, SEQUENCES, ("heads", "ffn")),
    "sharedkeys": Nasty(SharedKeys, SEQUENCES, ("heads",)),
    "lora": Nasty(Lora, VECTORS, ("ffn",)),
    "edges": Nasty(Edges, SEQUENCES, ("vocab",)),
    "sharedmask": Nasty(SharedMask, VECTORS, ("ffn",)),
    "quantised": Nasty(Quantised, VECTORS),
    "variational": Nasty(Variational, VECTORS, ("ffn",)),
    "diffusion": Nasty(Diffusion, IMAGES),
    "masked": Nasty(Masked, IMAGES, ("heads", "ffn")),
    "scheduled": Nasty(Scheduled, SEQUENCES, ("vocab",)),
    "averages": Nasty(Averages, VECTORS),
    "standardised": Nasty(Standardised, IMAGES),
    "mixed": Nasty(Mixed, VECTORS, ("ffn",)),
    "scalars": Nasty(Scalars, VECTORS, ("ffn",)),
    "strided": Nasty(Strided, SEQUENCES, ("vocab",)),
    "lengths": Nasty(Lengths, SEQUENCES, ("vocab",)),
    "hybrid": Nasty(Hybrid, IMAGES, ("heads",)),
    "recurrent": Nasty(Recurrent, SEQUENCES, ("vocab",)),
    "contrast": Nasty(Contrast, VECTORS, ("ffn",)),
    "mixup": Nasty(Mixup, VECTORS, ("ffn",)),
    "transcribed": Nasty(Transcribed, SEQUENCES),
}
