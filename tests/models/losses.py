"""Losses of every shape, each by a function of its name, on a small pipeline of blocks."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, HIDDEN, FEATURES = 8, 8, 6
AXES = {"x": ("batch", "feature"), "y": ("batch", "target"), "labels": ("batch",), "z": ("batch", "target")}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 16), nn.Linear(16, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    """`loss` computes the loss of the net, its output, what its blocks leave, and the inputs."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.front = nn.Linear(FEATURES, HIDDEN)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(HIDDEN, HIDDEN)
        self.scale, self.scales = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor([0.1, 0.4]))
        self.extra, self.vector = nn.Linear(HIDDEN, HIDDEN), nn.Parameter(torch.ones(HIDDEN))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor, labels: Tensor, z: Tensor) -> Tensor:
        x, left = self.front(x), []
        for block in self.h:
            x = block(x)
            left.append(x)
        return self.loss(self, self.head(x), left, y, labels, z)


def mse(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().mean()


def mae(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().mean()


# -- sums of terms that examples have for themselves, and what is added to them ----------------------------------------


def early(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) + 0.1 * left[0].square().mean()


def uncertainty(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return torch.exp(-net.scale) * mse(out, y) + net.scale


def uncertainties(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return (torch.exp(-net.scales) * torch.stack([mse(out, y), mae(out, z)]) + net.scales).sum()


def penalty(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) + 0.01 * sum(w.square().sum() for w in net.parameters())


def early_penalty(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) + 0.01 * net.front.weight.norm()


def valid(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    mask = labels.ne(-100).to(out.dtype)
    return (F.cross_entropy(out, labels, reduction="none") * mask).sum() / mask.sum().clamp(min=1)


def triplet(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return F.triplet_margin_loss(out, y, z)


def margin(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return F.multi_margin_loss(out, labels.clamp(min=0)) + F.cosine_embedding_loss(out, y, z.sum(-1).sign())


def two_inputs(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) + F.l1_loss(net.head(z), y)


def five_terms(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    terms = [mse(out, y), 0.1 * mae(out, z), F.cross_entropy(out, labels), F.smooth_l1_loss(out, y), left[1].mean()]
    return sum(terms)  # type: ignore[return-value]


def numbers(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return 1 - F.cosine_similarity(out, y).mean() + 0.5


def weighted(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return ((out - y).square().mean(0) * net.head.bias.softmax(0)).sum()


def tasks(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return torch.stack([mse(out, y), mae(out, y)]) @ net.head.bias.softmax(0)[:2]


def orthogonal(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    """A product of weights, of another stage than the loss, is no product of two sums over examples."""
    w = net.h[0].up.weight
    return mse(out, y) * w.norm() + (w.t() @ w - torch.eye(HIDDEN, dtype=w.dtype)).square().mean()


def chosen(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    """Mixed by weights, and taken or not by what no example decides."""
    mixed = torch.lerp(mse(out, y), mae(out, z), net.scale.sigmoid())
    return torch.where(net.scale > 0, mixed, mae(out, y)) + torch.where(net.scale > 1, mse(out, y), net.vector.norm())


def added(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    error = torch.addcmul(mse(out, y), net.scale, net.head.weight.norm(), value=0.1)
    return torch.addcdiv(error, mae(out, z), net.vector.norm(), value=0.5)


# -- weights without a gradient, with one of zeros, with one from several losses ---------------------------------------


def aside(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    net.extra(out).sum()  # nobody reads it
    with torch.no_grad():
        target = net.h[1](z) * net.vector
    return mse(out, y) + mse(out, target)


def zeros(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    dead = (net.extra(out) - 1000).relu().mean()
    return mse(out, y) + dead + 0.0 * net.vector.sum()


def rounded(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out * net.vector.sign(), y) + net.extra(out).round().mean()


def several(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(net.extra(out), y) + mse(net.extra(left[0]), z) + 0.01 * net.extra.weight.square().sum()


def frozen(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) + 0.01 * net.front.weight.square().sum() + (net.extra(out).detach() * out).mean()


# -- what is not linear in such a sum, or mixes examples ---------------------------------------------------------------


def product(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) * left[0].abs().mean()


def ratio(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y) / (1 + mae(out, z))


def exponential(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y).exp()


def perplexity(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return F.cross_entropy(out, labels).exp()


def root(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    return mse(out, y).sqrt() + 0.01 * net.head.weight.square().sum()


def gated(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    gate = out[:, 0].sigmoid()
    return (gate * (out - y).square().mean(-1)).sum() / gate.sum()


def balanced(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    a, b = mse(out, y), mae(out, z)
    return a + b * (a.detach() / b.detach())


def clip(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    a, b = F.normalize(out, dim=-1), F.normalize(net.head(z), dim=-1)
    logits = net.scale.exp() * a @ b.t()
    target = torch.arange(out.shape[0])
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def correlation(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    a, b = out - out.mean(0), y - y.mean(0)
    return 1 - (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def centred(net: Any, out: Any, left: Any, y: Any, labels: Any, z: Any) -> Tensor:
    """A sum over the parts, of what a mean over all of them is taken from."""
    return F.cross_entropy(net.extra(out - out.detach().mean(0).sigmoid()), labels)


# ----------------------------------------------------------------------------------------------------------------------


def batch(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x, y, z = (torch.randn(BATCH, n, generator=draw, dtype=torch.float64) for n in (FEATURES, HIDDEN, HIDDEN))
    labels = torch.randint(0, HIDDEN, (BATCH,), generator=draw)
    labels[[0, 1, 5]] = -100  # of the parts of a batch, some have more valid labels than others
    return {"x": x, "y": y, "labels": labels, "z": z}


def _net(loss: Callable[..., Tensor]) -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, tuple[str, ...]]]:
    torch.manual_seed(0)
    net = Net(loss).double()
    if loss is frozen:
        net.front.requires_grad_(False)
        net.h[0].requires_grad_(False)
        net.head.bias.requires_grad_(False)
    return net, [batch(1), batch(2)], AXES


LINEAR = (early, uncertainty, uncertainties, penalty, early_penalty, valid, triplet, margin, two_inputs, five_terms)
LINEAR += (numbers, weighted, tasks, orthogonal, chosen, added)
GRADIENTS = (aside, zeros, rounded, several, frozen)
OTHERS = (product, ratio, exponential, perplexity, root, gated, balanced, clip, correlation)

for _loss in (*LINEAR, *GRADIENTS, *OTHERS, centred):
    globals()[f"net_{_loss.__name__}"] = functools.partial(_net, _loss)
