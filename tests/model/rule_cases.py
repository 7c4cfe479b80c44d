"""For every row of the rule table, calls that exercise it: families of tiny programs over fresh weights and indices."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

Results = list[torch.Tensor]


class Probe(torch.nn.Module):
    """A module whose forward is a function of its weights: `p(2, 3)` is a new one, `p.ids(4, below=10)` new indices."""

    def __init__(self, family: Callable[["Probe"], Results], training: bool = True) -> None:
        super().__init__()
        self.family, self.made = family, 0
        with torch.no_grad():
            self.forward(torch.zeros(()))
        self.train(training)

    def weight(self, *shape: int) -> torch.Tensor:
        name = self._name()
        if name not in self._parameters:
            self.register_parameter(name, torch.nn.Parameter(0.2 + torch.rand(shape)))
        return self._parameters[name]  # type: ignore[return-value]

    def buffer(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        name = self._name()
        if name not in self._buffers:
            self.register_buffer(name, make())
        return self._buffers[name]  # type: ignore[return-value]

    def ids(self, *shape: int, below: int) -> torch.Tensor:
        return self.buffer(lambda: torch.randint(below, shape))

    def data(self, *shape: int) -> torch.Tensor:
        return self.buffer(lambda: 0.2 + torch.rand(shape))

    def _name(self) -> str:
        self.made += 1
        return f"w{self.made}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.made = 0
        return sum((r.sum() for r in self.family(self)), x.sum())


UNARY = """
    abs acos asin asinh atan atanh ceil cos cosh deg2rad detach digamma erf erfc erfinv exp exp2 expm1 floor frac
    isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not logit nan_to_num neg ones_like
    rad2deg reciprocal round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan tanh trunc zeros_like relu
""".split()
ACTIVATIONS = "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus".split()
BINARY = """
    add atan2 copysign div eq fmod ge gt hypot le logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum
    minimum mul ne pow remainder rsub sub true_divide xlogy
""".split()
BITWISE = "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor".split()
LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits".split()
)


def unary(p: Probe) -> Results:
    return [
        *(getattr(torch, name)(p.weight(2, 4) * 0.8) for name in UNARY),
        torch.empty_like(p.weight(2, 4)).fill_(2.0),
        *(getattr(F, name)(p.weight(2, 4) - 0.5) for name in ACTIVATIONS),
        torch.acosh(p.weight(2, 4) + 1),
        F.threshold(p.weight(2, 4), 0.5, 0.1),
        F.gelu(p.weight(2, 4), approximate="tanh"),
        F.glu(p.weight(2, 8, 3), 1),
        torch.full_like(p.weight(2, 4), 3.0),
        p.weight(2, 4).clone().fill_(2.0),
        p.weight(2, 4).clone().zero_(),
        *(p.weight(2, 4).clone().copy_(x) for x in (p.weight(4), p.weight(2, 1).double(), p.weight(2, 4))),
        p.weight(2, 4).half(),
        torch.bitwise_not(p.weight(2, 4).long()),
        F.prelu(p.weight(2, 4, 3) - 0.5, p.weight(4)),
        F.prelu(p.weight(2, 4), p.weight(1)),
        p.weight(2, 4).clamp(0.3, 0.8),
        p.weight(2, 4).clamp_min(0.5),
        p.weight(2, 4).clamp_max(0.5),
        torch.clamp(p.weight(2, 4), p.weight(4), p.weight(2, 1)),
        1 - p.weight(2, 4),
        2 / p.weight(2, 4),
        p.weight(2, 4) ** 3,
    ]


def binary(p: Probe) -> Results:
    masks = [p.weight(2, 4) > 0.5, p.weight(1, 4) > 0.5]
    return [
        *(getattr(torch, name)(p.weight(2, 4), p.weight(4)) for name in BINARY),
        *(getattr(torch, name)(p.weight(2, 4).detach(), p.data(4)) for name in ("heaviside", "floor_divide")),
        *(getattr(torch, name)(p.weight(3, 1, 4).long(), p.weight(2, 1).long()) for name in BITWISE),
        *(f(p.weight(2, 4), p.weight(4)) for f in (torch.max, torch.min)),
        masks[0] & masks[1],
        masks[0] | masks[1],
        masks[0] ^ masks[1],
        torch.add(p.weight(2, 4), p.weight(2, 1), alpha=3),
        torch.div(p.weight(2, 4), p.weight(2, 4), rounding_mode="floor"),
        torch.addcdiv(p.weight(2, 4), p.weight(4), p.weight(2, 1)),
        torch.addcmul(p.weight(2, 4), p.weight(4), p.weight(2, 4), value=0.5),
        torch.lerp(p.weight(2, 4), p.weight(2, 4), 0.3),
        torch.lerp(p.weight(2, 4), p.weight(2, 4), p.weight(4)),
        p.weight(2, 4).masked_fill(masks[1], 0.5),
        torch.where(masks[0], p.weight(4), p.weight(2, 1)),
        torch.where(masks[0], p.weight(2, 4), 0.0),
    ]


def losses(p: Probe) -> Results:
    pairs = [(getattr(F, name), reduction) for name in LOSSES for reduction in ("mean", "sum", "none")]
    return [
        *(f(p.weight(4, 6) / 2, p.data(4, 6) / 2, reduction=reduction) for f, reduction in pairs),
        F.kl_div(p.weight(4, 6), p.weight(4, 6), reduction="batchmean", log_target=True),
        F.mse_loss(p.weight(4, 1), p.weight(1, 6)),
        F.soft_margin_loss(p.weight(4, 6), p.data(4, 6)),
        F.binary_cross_entropy_with_logits(p.weight(4, 6), p.data(4, 6), p.data(4, 1), pos_weight=p.data(6)),
        F.margin_ranking_loss(p.weight(4), p.weight(4), p.data(4)),
        F.triplet_margin_loss(p.weight(4, 6), p.weight(4, 6), p.weight(4, 6)),
        F.cosine_embedding_loss(p.weight(4, 6), p.weight(4, 6), p.data(4).sign()),
    ]


def cross_entropy(p: Probe) -> Results:
    def labels(*shape: int) -> torch.Tensor:
        return p.buffer(lambda: torch.randint(8, shape).flatten().index_fill(0, torch.tensor([1]), -100).view(shape))

    return [
        F.cross_entropy(p.weight(6, 8), labels(6)),
        F.cross_entropy(p.weight(6, 8), labels(6), reduction="sum"),
        F.cross_entropy(p.weight(6, 8), labels(6), reduction="none"),
        F.cross_entropy(p.weight(6, 8), p.ids(6, below=8), ignore_index=3),
        F.cross_entropy(p.weight(4, 8, 2, 2), labels(4, 2, 2)),
        F.cross_entropy(p.weight(2, 8, 4), p.ids(2, 4, below=8), ignore_index=2),
        F.cross_entropy(p.weight(6, 8), labels(6), label_smoothing=0.1),
        F.cross_entropy(p.weight(6, 8), labels(6), weight=p.data(8)),
        F.cross_entropy(p.weight(6, 8), labels(6), weight=p.data(8), label_smoothing=0.1),
        F.cross_entropy(p.weight(6, 8), p.data(6, 8)),
        F.cross_entropy(p.weight(6, 8), p.data(6, 8), weight=p.data(8), label_smoothing=0.1),
        F.cross_entropy(p.weight(8), p.buffer(lambda: torch.tensor(3))),
        F.nll_loss(p.weight(6, 8), labels(6)),
        F.nll_loss(p.weight(6, 8), labels(6), weight=p.data(8)),
        F.nll_loss(p.weight(4, 8, 2, 2), labels(4, 2, 2), reduction="none"),
        F.nll_loss(p.weight(4, 8, 2), p.ids(4, 2, below=8), weight=p.data(8), reduction="sum", ignore_index=2),
        F.cross_entropy(p.weight(4, 8, 2), labels(4, 2), weight=p.data(8), label_smoothing=0.2, reduction="none"),
        F.cross_entropy(p.weight(4, 8, 2), labels(4, 2), label_smoothing=0.2, reduction="sum"),
        F.cross_entropy(p.weight(4, 8, 2), p.weight(4, 8, 2), reduction="none"),
    ]


def contractions(p: Probe) -> Results:
    w = p.weight
    return [
        F.linear(w(4, 6), w(8, 6)),
        F.linear(w(2, 4, 6), w(8, 6), w(8)),
        F.linear(w(6), w(8, 6), w(8)),
        torch.addmm(w(8), w(4, 6), w(6, 8)),
        torch.addmm(w(4, 8), w(4, 6), w(6, 8), beta=0.5, alpha=2),
        torch.addmm(w(1, 8), w(4, 6), w(6, 8)),
        torch.addmm(w(4, 1), w(4, 6), w(6, 8)),
        torch.addmv(w(4), w(4, 6), w(6)),
        torch.mm(w(4, 6), w(6, 8)),
        torch.bmm(w(2, 4, 6), w(2, 6, 8)),
        torch.baddbmm(w(8), w(2, 4, 6), w(2, 6, 8)),
        torch.baddbmm(w(2, 1, 8), w(2, 4, 6), w(2, 6, 8)),
        torch.dot(w(4), w(4)),
        torch.mv(w(4, 6), w(6)),
        torch.outer(w(4), w(6)),
        F.bilinear(w(4, 6), w(4, 2), w(8, 6, 2), w(8)),
        torch.matmul(w(4), w(4)),
        torch.matmul(w(4, 6), w(6)),
        torch.matmul(w(4), w(4, 6)),
        torch.matmul(w(2, 4, 6), w(6, 8)),
        torch.matmul(w(2, 4, 6), w(6)),
        torch.matmul(w(2, 1, 4, 6), w(2, 6, 8)),
        torch.matmul(w(4, 6), w(2, 2, 6, 8)),
        torch.tensordot(w(2, 4, 6), w(4, 6, 8), 2),
        torch.kron(w(2, 4), w(2, 2)),
        torch.vdot(w(4), w(4)),
        *(torch.cdist(w(2, 1, 4, 6), w(2, 8, 6)), torch.cdist(w(4, 6), w(8, 6), p=1.0)),
        *(torch._weight_norm(w(6, 4), w(6, 1), 0), torch._weight_norm(w(2, 6, 4), w(1, 1, 4), 2)),
    ]


def einsums(p: Probe) -> Results:
    w = p.weight
    return [
        torch.einsum("bi,oi->bo", w(4, 6), w(8, 6)),
        torch.einsum("bhqd,bhkd->bhqk", w(2, 2, 4, 6), w(2, 2, 4, 6)),
        torch.einsum("...i,io", w(2, 4, 6), w(6, 8)),
        torch.einsum("b...i,oi->b...o", w(2, 4, 6), w(8, 6)),
        torch.einsum("ij,ik->jk", w(4, 6), w(1, 8)),
        torch.einsum("ij->", w(4, 6)),
        torch.einsum("ba", w(4, 6)),
        torch.einsum("bii->bi", w(2, 4, 4)),
        torch.einsum("bi,bj,bk->bijk", w(2, 4), w(2, 4), w(2, 6)),
    ]


def sequences(p: Probe) -> Results:
    """Targets of different lengths; one does not fit its input."""
    scores, words = p.weight(6, 4, 5).log_softmax(-1), p.ids(4, 3, below=4) + 1
    short = p.buffer(lambda: torch.tensor([3, 1, 2, 3]))
    long = p.buffer(lambda: torch.tensor([6, 6, 5, 2]))
    lost = [F.ctc_loss(scores, words, long, short, reduction=r, zero_infinity=True) for r in ("mean", "sum", "none")]
    numbers = [F.ctc_loss(scores, words, (6, 6, 6, 6), (3, 0, 2, 3), reduction=r) for r in ("sum", "none")]
    return [*lost, *numbers]


def attention(p: Probe) -> Results:
    attend, w = F.scaled_dot_product_attention, p.weight
    near = (torch.arange(6)[:, None] - torch.arange(6)).abs() < 2
    return [
        attend(w(2, 4, 6, 8), w(2, 4, 4, 8), w(2, 4, 4, 2)),
        attend(w(2, 4, 6, 8), w(2, 4, 6, 8), w(2, 4, 6, 8), is_causal=True, scale=0.1),
        attend(w(2, 4, 6, 8), w(2, 4, 4, 8), w(2, 4, 4, 8), p.data(2, 1, 6, 4) > 0.5),
        attend(w(2, 4, 6, 8), w(2, 4, 4, 8), w(2, 4, 4, 8), w(6, 4)),
        attend(w(2, 4, 6, 8), w(2, 4, 4, 8), w(2, 4, 4, 8), w(4, 1, 4), dropout_p=0.0),
        attend(w(2, 8, 6, 8), w(2, 4, 6, 8), w(2, 4, 6, 8), enable_gqa=True, is_causal=True),
        attend(w(2, 8, 6, 8), w(2, 4, 6, 8), w(2, 4, 6, 8), w(8, 6, 6), enable_gqa=True),
        attend(w(4, 6, 8), w(4, 6, 8), w(4, 6, 8)),
        attend(w(4, 6, 8), w(1, 6, 8), w(1, 6, 8)),
        attend(w(6, 8), w(6, 8), w(6, 8)),
        attend(w(4, 6, 8), w(4, 6, 8), w(4, 6, 8), p.data(4, 6, 6) > 0.5),
        attend(w(4, 6, 8), w(4, 6, 8), w(4, 6, 8), near & (p.data(4, 6, 6) > 0.5)),
        attend(w(2, 8, 6, 8), w(2, 4, 6, 8), w(2, 4, 6, 8), torch.where(near, w(8, 6, 6), -torch.inf), enable_gqa=True),
        attend(*(w(6, 4, 8).transpose(0, 1) for _ in range(3))).transpose(0, 1).reshape(6, 32),
        F.softmax(w(2, 4, 6, 8), -1),
        F.softmax(w(4, 6), 0, dtype=torch.float64),
        F.log_softmax(w(4, 6), -1),
        torch.ops.aten._log_softmax(w(4, 6), -1, False),
        torch.ops.aten._softmax(w(4, 6), 0, False),
        F.softmin(w(2, 4, 6), 1),
    ]


REDUCTIONS = ("sum", "mean", "amax", "amin", "prod")
EXTREMES = ("amax", "amin")


def tables(p: Probe) -> Results:
    x = p.weight
    return [
        F.embedding(p.ids(2, 4, below=8), x(8, 6)),
        F.embedding(p.ids(4, below=8), x(8, 6), padding_idx=1),
        F.embedding(p.buffer(lambda: torch.tensor([[0, 1], [2, 0]])), x(8, 6), padding_idx=0),
        x(4, 6)[p.ids(2, below=4)],
        x(4, 6)[:, p.ids(2, 4, below=6)],
        x(4, 6, 8)[p.ids(2, below=4), p.ids(2, below=6)],
        x(4, 6, 8)[p.ids(2, 1, below=4), :, p.ids(6, below=8)],
        x(4, 6, 8)[1:, p.ids(2, 1, below=6), p.ids(4, below=8)],
        x(4, 6).index_select(1, p.ids(2, below=6)),
        x(4, 6).gather(1, p.ids(4, 2, below=6)),
        x(4, 6, 2).gather(1, p.ids(2, 8, 2, below=6)),
        torch.take_along_dim(x(4, 6), p.ids(4, 2, below=6), 1),
        F.one_hot(p.ids(4, below=6) + x(4).long(), 8),
        x(4, 6).scatter(0, p.ids(2, 6, below=4), x(2, 6)),
        x(4, 6).scatter(1, p.ids(4, 2, below=6), 0.5),
        x(4, 6).scatter_add(0, p.ids(2, 6, below=4), x(2, 6)),
        x(4, 6).scatter_add(0, p.ids(2, 4, below=4), x(2, 4)),
        torch.scatter_reduce(x(4, 6), 0, p.ids(2, 6, below=4), x(2, 6), "sum"),
        x(4, 6).index_add(0, p.ids(2, below=4), x(2, 6)),
        x(4, 6).index_fill(1, p.ids(2, below=6), 0.5),
        x(4, 6).index_copy(0, p.buffer(lambda: torch.tensor([2, 0])), x(2, 6)),
        x(4, 6).slice_scatter(x(4, 2), 1, 1, 3),
        x(4, 6).select_scatter(x(4), 1, 2),
        x(4, 6).index_put((p.ids(3, below=4),), x(3, 6)),
        x(4, 6, 8).index_put((p.ids(4, below=4), p.ids(4, below=6)), x(8), accumulate=True),
        x(4, 6, 2).index_put((p.ids(3, 1, below=4), p.ids(2, below=6)), x(3, 2, 1), accumulate=True),
        put(x(4, 6, 8), (None, p.ids(5, below=6), p.ids(5, below=8)), x(4, 5)),
        put(x(4, 6, 8), (None, p.ids(3, 2, below=6)), x(3, 1, 8)),
        put(x(4, 6, 8, 2), (None, p.ids(3, below=6), p.ids(3, below=8)), x(1, 2)),
        put(x(4, 6, 8), (p.ids(3, below=4), None, p.ids(3, below=8)), x(3, 6)),
        x(4, 6).masked_scatter(p.data(4, 6) > 0.5, x(4, 6)),
        F.embedding_bag(p.ids(8, below=10), x(10, 6), p.buffer(lambda: torch.tensor([0, 3, 5])), mode="max"),
        *(F.embedding_bag(p.ids(4, 3, below=10), x(10, 6), mode=mode) for mode in ("sum", "mean", "max")),
        F.embedding_bag(p.ids(4, 3, below=10), x(10, 6), per_sample_weights=x(4, 3), mode="sum"),
        F.embedding_bag(p.ids(4, 3, below=10), x(10, 6) * 1.5),
        F.embedding_bag(p.ids(8, below=10), x(10, 6) * 1.5, p.buffer(lambda: torch.tensor([0, 3, 5])), mode="sum"),
        masked(x(4, 6, 2), p.data(4, 6) > 0.5),
    ]


def indexed(p: Probe) -> Results:
    """What is read and written at indices, the axes of which may be cut, and what is written as well."""
    w = p.weight
    near = p.buffer(lambda: torch.tensor([[-1, 0, 5], [3, -6, 2]]))
    return [
        w(6, 4)[near],
        w(4, 6)[:, near, None],
        w(6, 6)[near, near.flip(0)],
        w(6, 4, 6)[near, :, p.ids(3, below=6)],
        w(2, 6, 4)[:, near, p.ids(2, 1, below=4)],
        w(6, 4)[p.buffer(lambda: torch.tensor([4]))],
        *(w(2, 4, 6)[:, torch.arange(4).repeat(3)], w(2, 4, 6)[..., torch.arange(6).repeat_interleave(2).view(3, 4)]),
        p.data(6, 4)[near] * w(4),
        (w(6, 4)[near] > 0.5) & (p.data(6, 4) > 0.5)[near],
        w(6).index_select(0, p.ids(4, below=6)),
        w(2, 4, 6).index_select(-1, p.ids(9, below=6)),
        w(2, 6, 4).index_select(1, p.buffer(lambda: torch.tensor([3, 3, 1, 0], dtype=torch.int32))),
        torch.take_along_dim(w(6, 4), p.ids(2, 4, below=6), 0),
        w(6).scatter_add(0, p.ids(12, below=6), w(12)),
        w(2, 6, 4).scatter_add(1, p.ids(2, 9, 4, below=6), w(2, 9, 4)),
        w(2, 6, 4).scatter_add(1, p.ids(2, 3, 4, below=6), p.data(2, 4, 4)),
        p.data(4, 6).scatter_add(-1, p.ids(4, 6, below=6), w(4, 6)),
        w(4, 6).scatter_add(-1, p.ids(4, 6, below=6), p.data(4, 6)),
        w(6).index_add(0, p.ids(4, below=6), w(4)),
        w(6, 4).index_add(0, p.ids(9, below=6), w(9, 4), alpha=-2),
        w(2, 4, 6).index_add(-1, p.ids(4, below=6), w(2, 4, 4)),
        w(4, 6).index_add(1, p.buffer(lambda: torch.tensor([3, 3], dtype=torch.int32)), w(4, 2)),
        *(w(6, 4).scatter_reduce(0, p.ids(9, 4, below=6), w(9, 4), reduce) for reduce in REDUCTIONS),
        *(w(4, 6).scatter_reduce(-1, p.ids(4, 9, below=6), w(4, 9), r, include_self=False) for r in REDUCTIONS),
        w(6).scatter_reduce(0, p.ids(3, below=6), p.data(3), "amax"),
        p.data(6).scatter_reduce(0, p.ids(9, below=6), w(9), "amin"),
        *(w(4, 6).scatter_reduce(0, p.ids(12, 6, below=4), tied(w(12, 6)), r) for r in EXTREMES),
        *(tied(w(6)).scatter_reduce(0, p.ids(8, below=3), tied(w(8)), r, include_self=False) for r in EXTREMES),
        w(2, 4, 6).scatter_reduce(1, p.ids(2, 8, 6, below=4), tied(w(2, 8, 6)), "amin", include_self=False),
        p.data(6, 4).scatter_reduce(0, p.ids(4, 4, below=6), w(4, 4).log2().round() / 0, "amax", include_self=False),
        p.ids(6, below=9).scatter_reduce(0, p.ids(8, below=4), p.ids(8, below=9), "amin", include_self=False) * w(6),
        p.ids(6, below=9).scatter_reduce(0, p.ids(9, below=6), p.ids(9, below=9), "amax") * w(6),
        *(w(6, 4)[0] * w(6, 4).select(0, -1), w(2, 6, 4)[:, 2], w(2, 6, 4)[1, :, -1]),
        *(p.data(6, 4)[3] * w(4), (w(6, 4)[3] > 0.5) & (w(6, 4) > 0.5)[3], p.ids(6, 4, below=9)[5] * w(4)),
        every(w(6, 4)),
    ]


def tied(x: torch.Tensor) -> torch.Tensor:
    """Numbers of which many are equal, with the gradient of x."""
    return x + ((2 * x).round() / 2 - x).detach()


def every(x: torch.Tensor) -> torch.Tensor:
    """The product of all rows, which are selected one by one."""
    last = x[0]
    for row in range(1, x.shape[0]):
        last = last * x[row]
    return last


def put(x: torch.Tensor, places: tuple[torch.Tensor | None, ...], values: torch.Tensor) -> torch.Tensor:
    """x[places] += values, also where a place is twice."""
    return torch.ops.aten.index_put(x, places, values, True)


def masked(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[where] = 0.5
    return y


# The number of axes of a grid, then arguments of `grid_sample`, each value of which has a row: mode, padding_mode,
# align_corners.
GRIDS = (
    *((1, "nearest", "reflection", True), (2, "bilinear", "zeros", False)),
    *((3, "bilinear", "border", True), (2, "bicubic", "zeros", False)),
)
EVERY_GRID = tuple(product((1, 2, 3), ("bilinear", "nearest"), ("zeros", "border", "reflection"), (True, False)))


def grids(p: Probe) -> Results:
    maps = ((p.weight(2, 2, 3), (2, 1, 4, 6), False), (p.weight(2, 2, 3), (2, 1, 1, 4), True))
    volume = F.affine_grid(p.weight(2, 3, 4), [2, 1, 4, 2, 6], align_corners=True)
    return [*(sampled(p, *grid) for grid in GRIDS), *(F.affine_grid(*m) for m in maps), volume]


def every_grid(p: Probe) -> Results:
    return [sampled(p, *grid) for grid in EVERY_GRID]


def sampled(p: Probe, axes: int, mode: str, padding: str, align: bool) -> torch.Tensor:
    """A line, a plane or a volume at points in and around it, some of which are grid points and borders."""
    if axes == 1:
        along = points(p, 1, 1, 6)
        grid, at = p.weight(1, 2, 1, 6), torch.stack([along, torch.zeros_like(along)], -1)
    elif axes == 2:
        grid, at = p.weight(2, 4, 6, 4), points(p, 2, 3, 4, 2)
    else:
        grid, at = p.weight(2, 3, 4, 6, 2), points(p, 2, 2, 1, 6, 3)
    return F.grid_sample(grid, at, mode=mode, padding_mode=padding, align_corners=align)


def points(p: Probe, *shape: int) -> torch.Tensor:
    at = p.weight(*shape)
    return torch.where(p.data(*shape) > 0.7, p.ids(*shape, below=5) / 2 - 1, 4 * at - 2.5)


def experts(p: Probe) -> Results:
    """Rows of experts; `_grouped_mm` needs multiples of 16 bytes and, where it is captured, bfloat16."""
    w, ends = p.weight, p.buffer(lambda: torch.tensor([2, 2, 6], dtype=torch.int32))
    import transformers.integrations.moe  # noqa: F401

    rows, weights = w(6, 16).bfloat16(), w(3, 16, 8).bfloat16()
    of, own = w(6, 3).argmax(-1), p.buffer(lambda: torch.arange(3))
    sent, counts = torch.ops.ssdsl.dispatch(w(6, 4), of, own), torch.ops.ssdsl.count_rows(of, own, 2)
    made = torch.ops.ssdsl.expert_mm(sent, w(3, 4, 2), counts)
    return [
        torch.ops.ssdsl.combine(made, of, own),
        torch.ops.ssdsl.routed_mm(w(6, 4), w(3, 4, 2), p.ids(6, below=3)),
        torch.ops.transformers.grouped_mm_fallback(w(6, 4), w(3, 4, 2), ends),
        torch._grouped_mm(rows, weights, offs=ends) * p.data(6, 8),
    ]


def complex_numbers(p: Probe) -> Results:
    w, real = p.weight, torch.view_as_real
    rotated = torch.view_as_complex(w(4, 6, 2)) * torch.polar(p.data(6), p.data(6))
    return [
        real(rotated),
        *(torch.complex(w(4), w(4)).real, torch.complex(w(4), w(1)).conj().imag),
        *(real(torch.fft.fft(w(4, 6))), real(torch.fft.rfft(w(4, 6), dim=0)), real(torch.fft.fft2(w(2, 4, 6)))),
        torch.fft.irfft(torch.fft.rfft(w(4, 6))),
        torch.fft.fft(w(4, 6)).abs(),
    ]


def matrices(p: Probe) -> Results:
    w = p.weight
    x = p.buffer(lambda: torch.eye(3) * 6) + w(4, 2, 3, 3)
    symmetric = x + x.mT
    return [
        torch.linalg.inv_ex(x)[0],
        torch.linalg.cholesky_ex(symmetric)[0],
        *(torch.linalg.eigh(symmetric)[0], *torch.linalg.qr(x)),
        *(torch.linalg.inv(x), torch.linalg.cholesky(symmetric), torch.linalg.lu_factor(x)[0]),
        *(torch.linalg.solve(x, w(4, 2, 3, 2)), torch.linalg.solve(x, w(4, 2, 3)), torch.linalg.solve(x, w(2, 3, 2))),
        *(torch.linalg.svdvals(x), torch.linalg.det(x), torch.linalg.slogdet(x)[1]),
        torch.lu_solve(w(4, 2, 3, 2), *torch.linalg.lu_factor(x)),
        torch.linalg.householder_product(x / 9, w(4, 2, 3)),
        torch.cholesky_inverse(torch.linalg.cholesky(symmetric)),
        torch.linalg.matrix_exp(x / 4),
        torch.linalg.solve_triangular(x, p.weight(4, 2, 3, 2), upper=True),
        torch.linalg.solve_triangular(x, p.weight(2, 3, 2), upper=True),
        torch.linalg.solve_triangular(x, p.weight(4, 2, 6, 3), upper=False, left=False),
    ]


def normalisation(p: Probe) -> Results:
    w = p.weight
    return [
        F.layer_norm(w(2, 4, 6), (6,), w(6), w(6)),
        F.layer_norm(w(2, 4, 6), (4, 6)),
        F.rms_norm(w(2, 4, 6), (6,), w(6)),
        F.group_norm(w(2, 4, 6, 2), 2, w(4), w(4)),
        F.group_norm(w(2, 4, 6), 4),
        F.instance_norm(w(2, 4, 6, 2)),
        F.instance_norm(w(2, 4, 6), weight=w(4), bias=w(4)),
        F.normalize(w(2, 4, 6), dim=-1),
        F.local_response_norm(w(2, 4, 6, 2), 2),
    ]


def batch_norm(p: Probe) -> Results:
    w, statistics = p.weight, (p.data(4), p.data(4), p.data(4), p.data(4))
    return [
        F.batch_norm(w(4, 4, 6), *statistics[:2], w(4), w(4), training=p.training, momentum=0.2),
        F.batch_norm(w(8, 4), *statistics[2:], training=p.training),
        F.batch_norm(w(4, 4, 2, 2), None, None, w(4), w(4), training=True),
    ]


def convolutions(p: Probe) -> Results:
    w = p.weight
    return [
        F.conv1d(w(2, 4, 6), w(8, 4, 3), w(8), padding=1),
        F.conv2d(w(2, 4, 6, 6), w(6, 4, 3, 3), w(6), stride=2, padding=1),
        F.conv2d(w(2, 4, 6, 6), w(6, 4, 3, 3), padding="same"),
        F.conv2d(w(2, 4, 6, 6), w(6, 4, 3, 3), w(6), dilation=2),
        F.conv3d(w(2, 2, 4, 4, 4), w(4, 2, 2, 2, 2), w(4), stride=2),
        F.conv2d(w(2, 4, 8, 4), w(6, 4, 2, 2), w(6), stride=2),
        F.conv2d(w(2, 4, 7, 4), w(6, 4, 2, 2), w(6), stride=2),
        F.conv2d(w(2, 4, 6, 6), w(4, 1, 3, 3), w(4), groups=4, padding=1),
        F.conv1d(w(2, 4, 6), w(8, 1, 3), w(8), padding="same", groups=4),
        F.conv2d(w(2, 8, 6, 6), w(12, 2, 3, 3), w(12), groups=4, padding=1),
        F.conv3d(w(2, 4, 4, 4, 4), w(4, 2, 2, 2, 2), groups=2),
        F.conv2d(w(4, 6, 6), w(8, 1, 3, 3), w(8), groups=4),
        F.conv2d(w(4, 6, 6), w(8, 4, 3, 3), w(8)),
        F.conv2d(w(2, 4, 8, 4) * 2, w(6, 4, 2, 2), w(6), stride=2),
        F.conv_transpose1d(w(2, 4, 6), w(4, 8, 3), w(8)),
        F.conv_transpose2d(w(2, 4, 6, 6), w(4, 6, 2, 2), w(6), stride=2),
        F.conv_transpose2d(w(2, 4, 6, 6), w(4, 3, 2, 2), w(6), stride=2, groups=2),
        F.conv_transpose1d(w(2, 4, 6), w(4, 2, 3), w(8), groups=4),
        F.conv_transpose3d(w(2, 2, 4, 4, 4), w(2, 4, 2, 2, 2), w(4), stride=2),
        F.conv_transpose3d(w(2, 4, 4, 4, 4), w(4, 1, 2, 2, 2), stride=2, groups=4),
    ]


def images(p: Probe) -> Results:
    x, y, z = p.weight(2, 4, 8), p.weight(2, 4, 8, 8), p.weight(2, 2, 4, 4, 4)
    return [
        *(f(x, 2) for f in (F.max_pool1d, F.avg_pool1d)),
        *(f(y, 2) for f in (F.max_pool2d, F.avg_pool2d)),
        *(f(z, 2) for f in (F.max_pool3d, F.avg_pool3d)),
        *(f(x, n) for n in (2, 3) for f in (F.adaptive_avg_pool1d, F.adaptive_max_pool1d)),
        *(f(y, n) for n in (2, 3) for f in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d)),
        *(f(z, n) for n in (2, 3) for f in (F.adaptive_avg_pool3d, F.adaptive_max_pool3d)),
        F.max_pool2d(y, 2, return_indices=True)[0],
        F.max_pool2d(p.weight(4, 8, 8), 3, 2, 1),
        F.max_pool3d(z, 2, return_indices=True)[0],
        F.avg_pool2d(y, 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool2d(y, 1),
        F.lp_pool2d(y, 2.0, 2),
        *(F.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "linear")),
        *(F.interpolate(y, size=(4, 16), mode=mode) for mode in ("nearest", "bilinear", "bicubic")),
        *(F.interpolate(z, scale_factor=2, mode=mode) for mode in ("nearest", "trilinear")),
        *(F.unfold(y, 3), F.unfold(p.weight(4, 8, 8), 3), F.fold(p.weight(2, 36, 16), (6, 6), 3)),
        F.channel_shuffle(p.weight(2, 12, 4), 3),
        F.pixel_shuffle(p.weight(2, 8, 2, 4), 2),
        F.pixel_unshuffle(p.weight(2, 2, 4, 8), 2),
    ]


def reductions(p: Probe) -> Results:
    x = p.weight
    paired = [f(x(4, 6), 1) for f in (torch.max, torch.min, torch.median, torch.var_mean, torch.std_mean)]
    return [
        x(4, 6).sum(),
        x(2, 4, 6).sum((0, 2), keepdim=True),
        x(4, 6).mean(),
        x(2, 4, 6).mean(-1),
        x(4, 6).half().mean(0, dtype=torch.float32),
        *(r for pair in paired for r in pair),
        *(getattr(x(4, 6), name)() for name in "max min argmax argmin prod median var std norm nansum nanmean".split()),
        *(getattr(x(4, 6), name)(1) for name in "amax amin argmax argmin prod var std logsumexp nansum".split()),
        *(f(x(4, 6) > 0.5) for f in (torch.any, torch.all, torch.count_nonzero)),
        *(f(x(4, 6) > 0.5, 1) for f in (torch.any, torch.all, torch.count_nonzero)),
        x(4, 6).norm(dim=1),
        F.pairwise_distance(x(4, 6), x(4, 6)),
        F.cosine_similarity(x(4, 6), x(4, 6)),
    ]


def along(p: Probe) -> Results:
    x = p.weight
    return [
        *(getattr(x(4, 6), name)(1) for name in "cumsum cumprod logcumsumexp flip argsort diff".split()),
        *(r for name in ("cummax", "cummin", "sort") for r in getattr(x(4, 6), name)(0)),
        torch.ops.ssdsl.linear_scan(x(4, 2, 6), x(4, 2, 6), None, 0, False),
        torch.ops.ssdsl.linear_scan(x(1, 4, 1), x(2, 4, 6), x(2, 6), 1, True),
        torch.ops.ssdsl.linear_scan(x(6), x(4, 6), x(1), 0, False),
        torch.ops.ssdsl.decode(torch.ops.ssdsl.encode(x(4, 6), 1, 3, 2), 1, 6, 2),
        torch.ops.ssdsl.decode(torch.ops.ssdsl.encode(x(2, 6, 4), 1, 3), 1, 6),
        *x(4, 6).topk(2),
        x(4, 6).roll(1),
        x(2, 4, 6).roll((1, 2), (1, 2)),
        *(x(2, 4, 6).tril(), x(2, 4, 6).triu(1)),
        torch.histc(x(4, 6).detach(), 6, 0, 1),
        torch.histc(x(4, 6).detach(), 6),
        x(4, 6)[:, 1:],
        x(4, 6)[::2, -1],
        x(4, 6).narrow(1, 2, 2),
        x(2, 4, 4).diagonal(0, 1, 2),
        x(4, 6).unfold(1, 2, 2),
    ]


def moves(p: Probe) -> Results:
    x = p.weight
    return [
        *(x(2, 4, 6).transpose(0, 2), x(4, 6).t(), x(2, 4, 6).permute(2, 0, 1), x(4, 6).mT),
        *(x(1, 6).expand(4, 6), x(6).expand(4, -1), x(4, 1).expand_as(x(4, 6)), x(6).broadcast_to(2, 4, 6)),
        x(2, 4, 6).select(1, 2),
        *(F.pad(x(4, 6), (1, 1)), F.pad(x(2, 4, 6), (0, 0, 1, -1)), F.pad(x(4, 6), (0, 0, 2, 0), value=0.5)),
        *(F.pad(x(2, 4, 6), (1, 2), mode=mode) for mode in ("reflect", "replicate", "circular")),
        *(x(4, 6).repeat(2, 1), x(4, 6).repeat(2, 2, 2), x(1, 1, 6).repeat(4, 2, 1), x(4, 6).repeat_interleave(2, 1)),
        *(torch.cat([x(4, 6), x(4, 2)], 1), torch.cat([x(0), x(4, 6)]), torch.hstack([x(4), x(4)])),
        torch.cat([x(4, 6), x(4, 6), x(4, 6)]),
        *(torch.stack([x(4, 6), x(4, 6)], 1), torch.stack([x(4), x(4)], -1)),
        *(
            *x(4, 6).split(2, 1),
            *x(4, 6).split([2, 4], -1),
            *x(4, 6).chunk(2),
            *x(6).tensor_split(4),
            *x(4, 6).split(4, 1),
        ),
        *x(2, 4, 6).unbind(1),
        *(
            x(4, 6).flatten(),
            x(24).unflatten(0, (4, 6)),
            x(4, 1, 6).squeeze(1),
            x(4, 6)[:, None],
            x(4, 6).view(2, 2, 3, 2),
        ),
        *(x(4, 6).view(8, 3), x(4, 6).view(torch.int32) % 8, x(4, 6).view(torch.int16) % 8),
        *torch.meshgrid(x(4), x(6), indexing="ij"),
    ]


def noise(p: Probe) -> Results:
    x, attend = p.weight, F.scaled_dot_product_attention
    return [
        F.dropout(x(2, 4, 6), 0.3),
        F.dropout2d(x(2, 4, 6, 2), 0.3),
        F.alpha_dropout(x(2, 4), 0.3, training=True),
        torch.bernoulli(x(2, 4) / 2),
        *(x(2, 4) * torch.empty_like(x(2, 4)).bernoulli_(0.5), x(2, 4) * torch.empty(2, 4).bernoulli_(0.5)),
        *(x(2, 4) + torch.rand_like(x(2, 4)), x(2, 4) + torch.randn_like(x(2, 4))),
        *((x(2, 4) * draw(2, 4, dtype=torch.complex64)).abs() for draw in (torch.rand, torch.randn)),
        (x(2, 4) + torch.empty(2, 4, dtype=torch.complex64).normal_(0.5, 2.0)).abs(),
        F.gumbel_softmax(x(2, 4)),
        *(x(2, 4).clone().normal_(), x(2, 4).clone().uniform_(), x(2, 4).clone().log_normal_()),
        *(x(2, 4) * torch.empty_like(x(2, 4)).cauchy_(), x(2, 4) * torch.empty(2, 4).geometric_(0.3)),
        *(x(2, 4) + torch.randint_like(x(2, 4), 9), x(2, 4) + torch.randint(3, 9, (2, 4))),
        *(torch.normal(x(2, 4), 1.0) + x(2, 4), torch.normal(x(4), x(2, 4)) + x(2, 4)),
        F.rrelu(x(2, 4) - 0.5, training=True),
        x(2, 4).gather(1, torch.multinomial(x(2, 4), 2)),
        x(2, 4).gather(1, torch.multinomial(x(2, 4), 3, replacement=True)),
        *(x(4, 2)[torch.randperm(4)], x(4, 2)[torch.randperm(4, dtype=torch.int32).long()]),
        torch.mul(*torch.native_dropout(x(2, 4), 0.3, True)),
        attend(x(2, 4, 6, 8), x(2, 4, 4, 8), x(2, 4, 4, 8), dropout_p=0.3),
        attend(x(2, 8, 6, 8), x(2, 4, 6, 8), x(2, 4, 6, 2), enable_gqa=True, dropout_p=0.3, is_causal=True),
    ]


FAMILIES: dict[str, Callable[[], Any]] = {
    **{
        f.__name__: lambda f=f: Probe(f)
        for f in (unary, binary, losses, cross_entropy, contractions, einsums, attention)
    },
    **{
        f.__name__: lambda f=f: Probe(f)
        for f in (tables, normalisation, batch_norm, convolutions, images, grids, reductions)
    },
    **{f.__name__: lambda f=f: Probe(f) for f in (along, indexed, moves, noise)},
    **{f.__name__: lambda f=f: Probe(f) for f in (experts, complex_numbers, matrices, sequences)},
    "batch_norm in eval mode": lambda: Probe(batch_norm, training=False),
}
PRODUCTS: dict[str, Callable[[], Any]] = {"every grid": lambda: Probe(every_grid)}  # where a family has a few cases
CASES = [*FAMILIES, *(pytest.param(family, marks=pytest.mark.slow) for family in PRODUCTS)]
