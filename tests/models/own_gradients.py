"""Models whose functions have gradients of their own (`torch.autograd.Function`), as users write them: a language model
of the layers that libraries of kernels have, and networks around one function."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, override, misc"

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import ssdsl


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.scale * g, None


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(x, low, high=None):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.low, ctx.high = inputs[1], inputs[2]

    @staticmethod
    def backward(ctx, g):
        return g.clamp(ctx.low, ctx.high), None, None


class RMS(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, w, r)
        return x * r * w

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        n = x * r
        gn = g * w
        gx = (gn - n * (gn * n).mean(-1, keepdim=True)) * r
        gw = (g * n).sum(tuple(range(x.dim() - 1))) if ctx.needs_input_grad[1] else None
        return gx, gw, None


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return g * b * (s + a * s * (1 - s)), g * F.silu(a)


class FusedSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        a, b = y.chunk(2, -1)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        a, b = y.chunk(2, -1)
        s = torch.sigmoid(a)
        return torch.cat([g * b * (s + a * s * (1 - s)), g * F.silu(a)], -1)


class Rope(torch.autograd.Function):
    @staticmethod
    def turned(x):
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return q * cos + Rope.turned(q) * sin, k * cos + Rope.turned(k) * sin

    @staticmethod
    def backward(ctx, gq, gk):
        cos, sin = ctx.saved_tensors
        return gq * cos - Rope.turned(gq * sin), gk * cos - Rope.turned(gk * sin), None, None


class VQ(torch.autograd.Function):
    """Nearest code: straight-through to x, and the codes' gradient; indices have none."""

    @staticmethod
    def forward(ctx, x, codes):
        i = torch.cdist(x.flatten(0, -2), codes).argmin(-1).view(x.shape[:-1])
        ctx.save_for_backward(i)
        ctx.count = len(codes)
        ctx.mark_non_differentiable(i)
        return codes[i], i, None, 3

    @staticmethod
    def backward(ctx, g, _i, _n, _k):
        (i,) = ctx.saved_tensors
        gc = torch.zeros(ctx.count, g.shape[-1], dtype=g.dtype).index_add_(0, i.flatten(), g.flatten(0, -2))
        return g, gc


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x):
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            out.append(h)
        y = torch.stack(out, 1)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        gx, ga, c = torch.empty_like(g), torch.empty_like(g), torch.zeros_like(g[:, 0])
        for t in reversed(range(g.shape[1])):
            c = c + g[:, t]
            gx[:, t] = c
            ga[:, t] = c * (y[:, t - 1] if t else 0)
            c = a[:, t] * c
        return ga, gx


class MLP(torch.autograd.Function):
    """A feed-forward as Unsloth's: the gradients of all weights by hand, weights in a list."""

    @staticmethod
    def forward(ctx, x, weights, up, down, act="gelu"):
        h = x @ up
        ctx.save_for_backward(x, h, up, down)
        return F.gelu(h) @ down

    @staticmethod
    def backward(ctx, g):
        x, h, up, down = ctx.saved_tensors
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            e = F.gelu(h)
        ge = g @ down.t()
        (gh,) = torch.autograd.grad(e, h, ge)
        rows = [t.flatten(0, -2) for t in (x, gh, e.detach(), g)]
        return gh @ up.t(), None, rows[0].t() @ rows[1], rows[2].t() @ rows[3], None


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Reverse.apply(x, 2.0).tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * (1 - x.tanh() ** 2) * 0.5


class Product(torch.autograd.Function):
    """A product of two matrices, whose backward computes in the type of the weights."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return x @ (a @ b)

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        g = g.to(a.dtype)
        whole = x.flatten(0, -2).t() @ g.flatten(0, -2)
        return g @ (a @ b).t(), whole @ b.t(), a.t() @ whole


class FusedCE(torch.autograd.Function):
    """As Liger's: mean over targets that count, gradients computed in the forward, chunk by chunk."""

    @staticmethod
    def forward(ctx, x, weight, target, bias=None, ignore_index=-100, reduction="mean"):
        chunks = min(4, len(x))
        gx, gw, total = torch.zeros_like(x), torch.zeros_like(weight), x.new_zeros(())
        gb = torch.zeros_like(bias) if bias is not None else None
        for rows, want, out in zip(x.chunk(chunks), target.chunk(chunks), gx.chunk(chunks), strict=True):
            logits = rows @ weight.t() + (bias if bias is not None else 0)
            total += F.cross_entropy(logits, want, reduction="sum", ignore_index=ignore_index)
            p = logits.softmax(-1)
            p.scatter_add_(1, want.clamp(min=0)[:, None], -torch.ones_like(want[:, None], dtype=p.dtype))
            p.masked_fill_((want == ignore_index)[:, None], 0)
            out.copy_(p @ weight)
            gw += p.t() @ rows
            if gb is not None:
                gb += p.sum(0)
        n = (target != ignore_index).sum() if reduction == "mean" else 1
        ctx.save_for_backward(gx / n, gw / n, gb / n if gb is not None else None)
        return total / n

    @staticmethod
    def backward(ctx, g):
        gx, gw, gb = ctx.saved_tensors
        return g * gx, g * gw, None, g * gb if gb is not None else None, None, None


class RowMean(torch.autograd.Function):
    """A mean over all rows that counts in the forward what the backward needs."""

    @staticmethod
    def forward(ctx, x, weight, labels):
        logits = x @ weight.t()
        p = logits.softmax(-1) - F.one_hot(labels, len(weight))
        n = labels.numel()
        ctx.save_for_backward(p @ weight / n, p.flatten(0, -2).t() @ x.flatten(0, -2) / n)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

    @staticmethod
    def backward(ctx, g):
        gx, gw = ctx.saved_tensors
        return g * gx, g * gw, None


class RowLoss(nn.Module):
    def __init__(self, w=16, v=24):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(v, w), nn.ModuleList([nn.Linear(w, w)]), nn.Linear(w, v)

    def forward(self, ids, labels):
        return RowMean.apply(self.blocks[0](self.embed(ids)).tanh(), self.head.weight, labels)


class Block(nn.Module):
    def __init__(self, w=16, heads=4, f=32):
        super().__init__()
        self.heads = heads
        self.norm = nn.Parameter(torch.ones(w))
        self.qkv, self.o = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.gate, self.up, self.down = nn.Linear(w, f), nn.Linear(w, f), nn.Linear(f, w)

    def forward(self, x, cos, sin):
        b, s, w = x.shape
        q, k, v = self.qkv(RMS.apply(x, self.norm, 1e-6)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = Rope.apply(q, k, cos, sin)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, w))
        h = RMS.apply(x, self.norm, 1e-6)
        return x + self.down(SwiGLU.apply(self.gate(h), self.up(h)))


class LM(nn.Module):
    def __init__(self, w=16, v=48, layers=2, ignore=False, reduction="mean", bias=False):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(v, w), nn.ModuleList(Block(w) for _ in range(layers))
        self.head = nn.Linear(w, v, bias=bias)
        self.reduction = reduction

    def forward(self, ids, labels):
        s = ids.shape[1]
        angle = torch.arange(s)[:, None] / 100 ** (torch.arange(2) / 2)
        cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        loss = FusedCE.apply(x.flatten(0, 1), self.head.weight, labels.flatten(), self.head.bias, -100, self.reduction)
        return loss if self.reduction == "mean" else loss / labels.numel()


def lm(**how):
    ids, labels = torch.randint(48, (8, 12)), torch.randint(48, (8, 12))
    labels[torch.rand(8, 12) < 0.3] = -100
    n = ("batch", "seq")
    return LM(**how), {"ids": ids, "labels": labels}, {"ids": n, "labels": n}


def summed():
    return lm(reduction="sum", bias=True)


class Net(nn.Module):
    def __init__(self, f, width=16):
        super().__init__()
        self.f = f
        self.enter, self.two, self.wide, self.leave = (
            nn.Linear(8, width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.Linear(width, 8),
        )
        self.codes = nn.Parameter(torch.randn(10, width))
        self.a, self.b = nn.Parameter(torch.randn(width, 32) / 4), nn.Parameter(torch.randn(32, width) / 6)

    def forward(self, x):
        return (self.leave(self.f(self, self.enter(x))) - x).square().mean()


def averaged():
    """The mean over the labels that count; two samples have none."""
    model, inputs, names = lm()
    inputs["labels"][2:4] = -100
    return model, inputs, names


def by_rows():
    names = ("batch", "seq")
    inputs = {"ids": torch.randint(24, (8, 6)), "labels": torch.randint(24, (8, 6))}
    return RowLoss(), inputs, {"ids": names, "labels": names}


def functions(function: Callable[[Net, torch.Tensor], torch.Tensor]) -> Any:
    torch.manual_seed(0)
    return Net(function), {"x": torch.randn(4, 6, 8)}, {"x": ("batch", "seq", "feature")}


def reversed_gradient():
    return functions(lambda net, h: Reverse.apply(h, 0.5).tanh())


def clipped():
    return functions(lambda net, h: Clip.apply(h, -1e-2, float("inf")))


def fused():
    return functions(lambda net, h: FusedSwiGLU.apply(net.two(h)))


def quantised():
    def compute(net: Net, h: torch.Tensor) -> torch.Tensor:
        nearest, index, _, number = VQ.apply(h, net.codes)
        return nearest + 0.1 * h + 0.01 * number * F.one_hot(index, 16)

    return functions(compute)


def scanned():
    return functions(lambda net, h: Scan.apply(torch.sigmoid(h), h))


def by_hand():
    return functions(lambda net, h: h + MLP.apply(h, [1, 2], net.a, net.b))


def nested():
    return functions(lambda net, h: Outer.apply(h))


def penalised():
    """A loss with a derivative through a function."""

    def compute(net: Net, h: torch.Tensor) -> torch.Tensor:
        y = SwiGLU.apply(h, h.sin())
        (slope,) = torch.autograd.grad(y.sum(), h, create_graph=True)
        return y + slope

    return functions(compute)


def casting():
    def compute(net: Net, h: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Product.apply(h, net.a, net.b).float()

    return functions(compute)


def row(name: str, dims: str, linear_in: tuple[str, ...] = (), **facts: Any) -> ssdsl.Op:
    return ssdsl.Op(f"own_gradients::{name}", dims, linear_in=linear_in, module="own_gradients", **facts)


def counted(call: Any) -> str:
    """The labels over which a call of FusedCE is a mean."""
    return "target != -100" if "'mean'" in call.argument("given") else ""


# as `ssdsl discover` prints them, but for the mean of one of two reductions
OPS = [
    row("Reverse", "... -> ...", ("x",)),
    row("Clip", "... -> ...", ("x",)),
    row("Outer", "... -> ..."),
    row("RMS", "... n!, n! -> ... n!", ("w",)),
    row("Rope", "a b c d!, a b c d!, c f!, c g! -> a b c d!, a b c d!"),
    row("SwiGLU", "a b c, a b c -> a b c", ("b",)),
    row("FusedSwiGLU", "... c! -> ... d!"),
    row("VQ", "... c!, d! c! -> ... c!, ..."),
    row("Scan", "a b! c, a b! c -> a b! c", ("x",)),
    row("MLP", "a b c!, c! e, e f -> a b f", ("down",), contraction=True),
    row("Product", "a b c, c d, d e -> a b e", ("x", "a", "b"), contraction=True),
    row("FusedCE", "a h!, v! h!, a, v!? -> _", contraction=True, mean=counted),
    row("RowMean", "a b h!, v! h!, a b -> _", contraction=True, mean="x.0 x.1"),
]
