"""Models of our own that do what models seldom do: routing, shared and produced weights, loops, several losses."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.plans import HARDER, PLANS
from ssdsl.model.load.model import Model

B, S, H, V = 8, 6, 16, 24
Axes = dict[str, tuple[str, ...]]
VECTORS: Axes = {"x": ("batch", "feature"), "y": ("batch",)}
SEQUENCES: Axes = {"x": ("batch", "seq"), "y": ("batch", "seq")}
IMAGES: Axes = {"x": ("batch", "channel", "height", "width"), "y": ("batch",)}


class Capacity(nn.Module):
    """A mixture of experts with two choices and a capacity in each sequence (GShard, 2020)."""

    def __init__(self, experts: int = 4, capacity: int = 4) -> None:
        super().__init__()
        self.embed, self.head, self.gate = nn.Embedding(V, H), nn.Linear(H, V), nn.Linear(H, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, H, 2 * H) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 2 * H, H) * 0.2)
        self.experts, self.capacity = experts, capacity

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        score, chosen = self.gate(h).softmax(-1).topk(2)
        route = F.one_hot(chosen, self.experts)  # [batch, seq, 2, experts]
        place = route.flatten(1, 2).cumsum(1).view(route.shape) - 1
        kept = route * (place < self.capacity)
        slots = F.one_hot(place.clamp(0, self.capacity - 1), self.capacity) * kept[..., None]
        combine = (slots * score[..., None, None]).sum(2)
        inside = torch.einsum("bsec,bsh->bech", slots.sum(2).to(h.dtype), h)
        made = torch.einsum("bech,ehf->becf", inside, self.up).relu()
        made = torch.einsum("becf,efh->bech", made, self.down)
        h = h + torch.einsum("bsec,bech->bsh", combine, made)
        balance = (route.float().mean((0, 1, 2)) * self.gate(h).softmax(-1).mean((0, 1))).sum()
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten()) + 0.01 * balance


class Translator(nn.Module):
    """An encoder and a decoder of torch with one embedding, which is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, H)
        self.body = nn.Transformer(H, 2, 1, 1, 2 * H, 0.0, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(S))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.body(self.embed(x), self.embed(y), tgt_mask=self.mask)
        return F.cross_entropy((h @ self.embed.weight.T)[:, :-1].flatten(0, 1), y[:, 1:].flatten())


class UNet(nn.Module):
    """Skips over a bottleneck, group norms, transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 4, 2, 1)
        self.deep, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.leave, self.norms = nn.Conv2d(16, 3, 1), nn.ModuleList([nn.GroupNorm(4, n) for n in (8, 16, 16, 8)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first = F.silu(self.norms[0](self.enter(x)))
        second = F.silu(self.norms[1](self.down(first)))
        second = second + F.silu(self.norms[2](self.deep(second)))
        third = F.silu(self.norms[3](self.up(second)))
        return F.mse_loss(self.leave(torch.cat([first, third], 1)), x * (y[:, None, None, None] + 1))


class Siamese(nn.Module):
    """Two towers of one weight and a margin between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(H, 2 * H), nn.GELU(), nn.Linear(2 * H, H), nn.LayerNorm(H))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.tower(x), self.tower(x.flip(-1))
        distance = (a - b).square().sum(-1).add(1e-6).sqrt()
        return torch.where(y > 0, distance.square(), (4 - distance).clamp(min=0).square()).mean()


class Hyper(nn.Module):
    """One network makes the weights of another, for each row its own."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.make = nn.Linear(H, 2 * H), nn.Linear(2 * H, H * 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights = self.make(self.read(x).tanh()).view(-1, 4, H)
        made = torch.bmm(weights, x.unsqueeze(-1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(self.last(made.relu()).squeeze(-1), y.float())


class Unrolled(nn.Module):
    """A cell of torch in a loop over time; the state is masked where a sequence has ended."""

    def __init__(self, kind: str = "LSTMCell") -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(V, H), getattr(nn, kind)(H, 2 * H), nn.Linear(2 * H, V)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], 2 * H)
        losses = []
        for step in range(x.shape[1]):
            going = (x[:, step] > 2).float()[:, None]
            new_h, new_c = self.cell(self.embed(x[:, step]), (h, c))
            h, c = going * new_h + (1 - going) * h, going * new_c + (1 - going) * c
            losses.append(F.cross_entropy(self.head(h), y[:, step]))
        return torch.stack(losses).mean()


class MixtureDensity(nn.Module):
    """The likelihood under several Gaussians, of which all is learned."""

    def __init__(self, parts: int = 3) -> None:
        super().__init__()
        self.body, self.parts = nn.Linear(H, 2 * H), nn.Linear(2 * H, 3 * parts)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight, mean, deviation = self.parts(self.body(x).tanh()).chunk(3, -1)
        normal = torch.distributions.Normal(mean, F.softplus(deviation) + 1e-3, validate_args=False)
        return -torch.logsumexp(weight.log_softmax(-1) + normal.log_prob(y.float()[:, None]), -1).mean()


class Ode(nn.Module):
    """Runge-Kutta steps of one learned field."""

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(H, 2 * H), nn.Tanh(), nn.Linear(2 * H, H))
        self.head, self.steps = nn.Linear(H, 2), steps

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        d = 1.0 / self.steps
        for _ in range(self.steps):
            k1 = self.field(x)
            k2 = self.field(x + d / 2 * k1)
            k3 = self.field(x + d / 2 * k2)
            k4 = self.field(x + d * k3)
            x = x + d / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return F.cross_entropy(self.head(x), y)


class Gan(nn.Module):
    """Generator and critic with their own losses; the critic's sees no generator."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(H, 2 * H), nn.ReLU(), nn.Linear(2 * H, H))
        self.judge = nn.Sequential(nn.Linear(H, 2 * H), nn.LeakyReLU(0.2), nn.Linear(2 * H, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        fake = self.make(torch.cat([y[:, None].to(x), x[:, 1:]], -1))
        real, false = self.judge(x), self.judge(fake.detach())
        critic = F.softplus(-real).mean() + F.softplus(false).mean()
        weights = [p.detach() for p in self.judge.parameters()]
        hidden = F.leaky_relu(F.linear(fake, weights[0], weights[1]), 0.2)
        return critic + F.softplus(-F.linear(hidden, weights[2], weights[3])).mean()


class Gated(nn.Module):
    """Cross attention behind a gate that starts at zero (Flamingo, 2022), with a mask in a buffer."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.memory = nn.Embedding(V, H), nn.Parameter(torch.randn(5, H))
        self.q, self.kv, self.out = nn.Linear(H, H), nn.Linear(H, 2 * H), nn.Linear(H, H)
        self.gate, self.head, self.heads = nn.Parameter(torch.tensor(0.1)), nn.Linear(H, V), heads
        self.register_buffer("mask", torch.rand(S, 5) > 0.3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        q = self.q(h).view(*x.shape, self.heads, -1).transpose(1, 2)
        k, v = (t.view(5, self.heads, -1).transpose(0, 1) for t in self.kv(self.memory).chunk(2, -1))
        weights = (q @ k.transpose(-1, -2)).masked_fill(~self.mask, -1e4).softmax(-1)
        h = h + self.gate.tanh() * self.out((weights @ v).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Autoencoder(nn.Module):
    """The decoder's weights are the encoder's, transposed; a penalty on their product."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(H, 2 * H), nn.Linear(2 * H, 4)
        self.bias = nn.ParameterList([torch.zeros(2 * H), torch.zeros(H)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.two(self.one(x).sigmoid())
        back = F.linear(code, self.two.weight.T, self.bias[0]).sigmoid()
        back = F.linear(back, self.one.weight.T, self.bias[1])
        gram = self.two.weight @ self.two.weight.T
        return F.mse_loss(back, x) + 0.01 * (gram - torch.eye(4)).square().sum() + 0 * y.sum()


class Rotary(nn.Module):
    """Learned positions and rotations by complex numbers; a learned temperature, norms of queries and keys."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, H), nn.Embedding(S, H)
        self.qkv, self.out, self.head = nn.Linear(H, 3 * H, bias=False), nn.Linear(H, H), nn.Linear(H, V)
        self.scale, self.heads = nn.Parameter(torch.ones(heads, 1, 1)), heads
        angles = torch.outer(torch.arange(S).float(), 100.0 ** -torch.arange(0, 1, 0.5))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        q, k, v = self.qkv(h).view(*x.shape, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * self.turn for t in (q, k))
        q, k = (F.normalize(torch.view_as_real(t).flatten(-2), dim=-1) for t in (q, k))
        made = F.scaled_dot_product_attention(q * self.scale, k, v, is_causal=True)
        h = h + self.out(made.transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class SqueezeExcite(nn.Module):
    """Channels weighed by a summary of the image; depthwise convolutions; weight norm on the head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.deep = nn.Conv2d(3, H, 3, 2, 1), nn.Conv2d(H, H, 3, padding=1, groups=H)
        self.squeeze, self.excite = nn.Conv2d(H, 4, 1), nn.Conv2d(4, H, 1)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(H, 2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.hardswish(self.deep(F.hardswish(self.enter(x))))
        h = h * self.excite(self.squeeze(F.adaptive_avg_pool2d(h, 1)).relu()).sigmoid()
        return F.cross_entropy(self.head(h.mean((2, 3))), y, label_smoothing=0.1)


class Pooling(nn.Module):
    """One learned query pools a sequence of any length; padding is masked by the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query = nn.Embedding(V, H, padding_idx=0), nn.Parameter(torch.randn(H))
        self.key, self.value, self.head = nn.Linear(H, H), nn.Linear(H, H), nn.Linear(H, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        scores = (self.key(h) @ self.query).masked_fill(x == 0, float("-inf"))
        scores[:, 0] = 0.0
        pooled = torch.einsum("bs,bsh->bh", scores.softmax(-1), self.value(h))
        return F.cross_entropy(self.head(pooled), y)


class Dynamic(nn.Module):
    """A convolution whose kernel each place makes for itself, by windows (involution, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.kernel, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2 * 9, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.enter(x)
        b, c, height, width = h.shape
        windows = F.unfold(h, 3, padding=1).view(b, 2, c // 2, 9, height, width)
        kernel = self.kernel(h).view(b, 2, 1, 9, height, width).softmax(3)
        return F.cross_entropy(self.head((windows * kernel).sum(3).flatten(1, 2).amax((2, 3))), y)


class Spectral(nn.Module):
    """Filters in the frequencies of a sequence (FNet, 2021; GFNet, 2021), bags of words, distances to prototypes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.bag = nn.Embedding(V, H), nn.EmbeddingBag(V, H, mode="mean")
        self.filter = nn.Parameter(torch.randn(S // 2 + 1, H, 2) * 0.2)
        self.prototypes = nn.Parameter(torch.randn(V, H))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.embed(x), dim=1) * torch.view_as_complex(self.filter)
        h = torch.fft.irfft(spectrum, n=S, dim=1) + self.bag(x)[:, None]
        return F.cross_entropy(-torch.cdist(h, self.prototypes).flatten(0, 1), y.flatten())


class Transformer(nn.Module):
    """A spatial transformer: the image is read where a small network points (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.point = nn.Conv2d(3, 4, 3, 2), nn.Linear(4, 2)
        self.read, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)
        self.register_buffer("places", torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 6)] * 2, indexing="xy"), -1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift = self.point(self.look(x).relu().mean((2, 3))).tanh()
        seen = F.grid_sample(x, self.places + 0.3 * shift[:, None, None], align_corners=False)
        return F.cross_entropy(self.head(self.read(seen).relu().mean((2, 3))), y)


class Twice(nn.Module):
    """A head that is frozen in one term and trained in another, a weight that nothing reads, one without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle = nn.Sequential(nn.Linear(H, 2 * H), nn.ReLU(), nn.Linear(2 * H, H)), nn.Linear(H, H)
        self.head, self.frozen = nn.Linear(H, 2), nn.Linear(H, H).requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.body(self.frozen(x))
        with torch.no_grad():
            teacher = self.head(h).softmax(-1)
        one = F.kl_div(self.head(h.detach()).log_softmax(-1), teacher, reduction="batchmean")
        return F.cross_entropy(F.linear(h, self.head.weight.detach()), y) + one


@dataclass(frozen=True, slots=True)
class Nasty:
    """A model, the names of its inputs' axes, and the dimensions that a tensor-parallel plan splits."""

    make: Callable[[], nn.Module]
    axes: Axes
    tensor: tuple[str, ...] = ()
    inputs: Callable[[torch.Generator], dict[str, Tensor]] | None = None  # by default what the axes say

    def build(self, name: str) -> Model:
        g = torch.Generator().manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make()
        return Model(f"nasty {name}", module, tuple(self._batch(g) for _ in range(2)), self.axes)

    def _batch(self, g: torch.Generator) -> dict[str, Tensor]:
        return self.inputs(g) if self.inputs else _batch(self.axes, g)

    @property
    def plans(self) -> dict[str, str]:
        """The plans of the table; the tensor-parallel one names dimensions, as these models are not Megatron's."""
        own = {"tensor": self._tensor_plan()} if self.tensor else {}
        return {name: own.get(name, text) for name, text in (PLANS | HARDER).items() if name != "tensor" or own}

    def _tensor_plan(self) -> str:
        splits = [f"split model by {name} into tp" for name in self.tensor]
        return "\n".join(["", "mesh gpus(tp = 2)", *splits, "assign model to gpus", ""])


def _batch(axes: Axes, g: torch.Generator) -> dict[str, Tensor]:
    if axes is SEQUENCES:
        return {name: torch.randint(V, (B, S), generator=g) for name in ("x", "y")}
    x = torch.randn((B, H) if axes is VECTORS else (B, 3, 8, 8), generator=g)
    return {"x": x, "y": torch.randint(2, (B,), generator=g)}


class _Labels(nn.Module):
    """A model of sequences with one label for each: the first word's parity."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.model(x, y[:, 0] % 2)
        return loss


NASTY: dict[str, Nasty] = {
    "capacity": Nasty(Capacity, SEQUENCES, ("ffn",)),
    "translator": Nasty(Translator, SEQUENCES, ("ffn",)),
    "unet": Nasty(UNet, IMAGES),
    "siamese": Nasty(Siamese, VECTORS, ("ffn",)),
    "hyper": Nasty(Hyper, VECTORS, ("ffn",)),
    "unrolled": Nasty(Unrolled, SEQUENCES),
    "density": Nasty(MixtureDensity, VECTORS, ("ffn",)),
    "ode": Nasty(Ode, VECTORS, ("ffn",)),
    "gan": Nasty(Gan, VECTORS, ("ffn",)),
    "gated": Nasty(Gated, SEQUENCES, ("heads",)),
    "autoencoder": Nasty(Autoencoder, VECTORS),
    "rotary": Nasty(Rotary, SEQUENCES, ("heads",)),
    "excite": Nasty(SqueezeExcite, IMAGES),
    "pooling": Nasty(lambda: _Labels(Pooling()), SEQUENCES),
    "dynamic": Nasty(Dynamic, IMAGES),
    "spectral": Nasty(Spectral, SEQUENCES, ("hidden",)),
    "pointer": Nasty(Transformer, IMAGES),
    "twice": Nasty(Twice, VECTORS, ("ffn",)),
}
