"""What the fuzzer once found wrong, made small by hand: the models. A function has the name of the case in found.py."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Given = tuple[nn.Module, dict[str, Tensor] | list[dict[str, Tensor]], dict[str, tuple[str, ...]]]


class BatchNormOfTwoViews(nn.Module):
    """One encoder for two views of a sample, as in Barlow Twins."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = self.encoder(a), self.encoder(b)
        first, second = first - first.mean(0), second - second.mean(0)
        return (first.T @ second / len(a)).square().mean()


def batch_norm_of_two_views() -> Given:
    torch.manual_seed(0)
    views = {"a": torch.randn(8, 10), "b": torch.randn(8, 10)}
    return BatchNormOfTwoViews(), views, dict.fromkeys(views, ("batch", "feature"))


class BatchNormTwice(nn.Module):
    """A batch norm that is called twice: its statistics change twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.norm(self.first(self.norm(self.first(x)).relu()))
        return F.cross_entropy(self.head(h), y)


def batch_norm_twice() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return BatchNormTwice(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class BufferChangedInParts(nn.Module):
    """A moving average that all micro-batches read, and recomputation again: it changes behind the step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 2)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.second(F.dropout(self.first(x - self.centre), 0.2).tanh() * 2)
        with torch.no_grad():
            self.centre.copy_(0.5 * self.centre + x.mean(0))
        return F.cross_entropy(self.head(h), y)


def buffer_changed_in_parts() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return BufferChangedInParts(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class BufferOfMergedAxis(nn.Module):
    """A buffer that nobody reads before it is overwritten: by a value whose axis is merged of two."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(4, 12 // 2), nn.Linear(12, 12)
        self.register_buffer("seen", torch.ones(12))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.front(x).flatten(2)
        if self.training:
            with torch.no_grad():
                self.seen.copy_(x[-1, -1])
        return (self.head(x / (1 + self.seen.abs())) - y).square().mean()


def buffer_of_merged_axis() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, *last, generator=g, dtype=torch.float64) for last in ((2, 4), (12,)))
    return (
        BufferOfMergedAxis().to(torch.float64),
        [{"x": x, "y": y}],
        {"x": ("batch", "seq", "stream", "feature"), "y": ("batch", "seq", "target")},
    )


class BufferSplitAsItsParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.back = nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.back(torch.relu(self.front(x) + x)) - y).square().mean()


def buffer_split_as_its_parts() -> Given:
    torch.manual_seed(0)
    names = {"x": ("batch", "hidden"), "y": ("batch", "one")}
    return BufferSplitAsItsParts(), {"x": torch.randn(8, 4), "y": torch.randn(8, 1)}, names


class BuffersFromInputs(nn.Module):
    """Buffers whose new values depend on inputs only, or are other buffers, two of them the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        for name in ("last", "before", "again", "zero"):
            self.register_buffer(name, torch.ones(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x + self.last + self.before - self.again)
        self.before.copy_(self.last)
        self.last.copy_(x.mean(0))
        self.again.copy_(x.mean(0) + self.before)
        self.zero.zero_()
        return F.cross_entropy(self.head(h.relu()), y)


def buffers_from_inputs() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return BuffersFromInputs(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class CancelledGradient(nn.Module):
    """A critic of real and fake samples in one batch: behind `middle` all is linear, so the gradient of its bias is a
    sum of equal numbers, half of them negative."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 16), nn.Linear(16, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor, sign: Tensor) -> Tensor:
        return (self.last(self.middle(self.first(x).relu())).squeeze(1) * sign).mean()


def cancelled_gradient() -> Given:
    torch.manual_seed(0)
    batch = {"x": torch.randn(14, 6), "sign": torch.tensor([1.0, -1.0]).repeat_interleave(7)}
    return CancelledGradient(), batch, {"x": ("batch", "feature"), "sign": ("batch",)}


class CausalPartsOutOfOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(2, 12, 2, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()


def causal_parts_out_of_order() -> Given:
    g = torch.Generator().manual_seed(0)
    batches = [{"x": torch.randn(2, 12, 8, generator=g, dtype=torch.float64)}]
    return CausalPartsOutOfOrder().to(torch.float64), batches, {"x": ("batch", "seq", "feature")}


class ClassesInTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(8, 2 * 8), nn.Linear(2 * 8, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.down(self.up(x).relu())), y)


def classes_in_time() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {"x": torch.randn(4, 8, generator=g), "y": torch.randint(6, (4,), generator=g)}
    return ClassesInTime(), [batch], {"x": ("batch", "feature"), "y": ("batch",)}


class CutTwiceWhereALikeCallIsNot(nn.Module):
    """The two directions of a recurrent layer make equal calls."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, bidirectional=True, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.rnn(x)[0].mean(1)), y)


def cut_twice_where_a_like_call_is_not() -> Given:
    torch.manual_seed(0)
    axes = {"x": ("batch", "seq", "feature"), "y": ("batch",)}
    return CutTwiceWhereALikeCallIsNot(), {"x": torch.randn(8, 3, 4), "y": torch.arange(8) % 3}, axes


class DataOperatorOfTwoResults(nn.Module):
    """Of two results of an operator on inputs one is read."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x.cummax(1).values).square().mean()


def data_operator_of_two_results() -> Given:
    g = torch.Generator().manual_seed(0)
    return (
        DataOperatorOfTwoResults(),
        [{"x": torch.randn(2, 6, 4, generator=g)} for _ in range(2)],
        {"x": ("batch", "seq", "feature")},
    )


class DrawnAmongSplitClasses(nn.Module):
    """Goes on with a class that it draws from its own scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.head(self.embed(x))
        guess = torch.multinomial(scores.detach().softmax(-1), 1).squeeze(-1)
        return F.cross_entropy(scores, y) + F.cross_entropy(self.head(self.embed(guess)), y)


def drawn_among_split_classes() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {name: torch.randint(12, (4,), generator=g) for name in ("x", "y")}
    return DrawnAmongSplitClasses(), [batch], {"x": ("batch",), "y": ("batch",)}


class DrawsOfWhatLearns(nn.Module):
    """Noise around a learned mean, and chances that learn: PyTorch gives both a gradient of zeros, not none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.normal(self.a(x), 0.1)
        return self.c(noise * torch.bernoulli(self.b(noise).sigmoid())).square().mean()


def draws_of_what_learns() -> Given:
    torch.manual_seed(0)
    return DrawsOfWhatLearns().double(), {"x": torch.randn(4, 6, 3).double()}, {"x": ("batch", "seq", "feature")}


class DroppedWholeAndEmpty(nn.Module):
    """Dropout of everything and of nothing: neither takes a number, and both are split."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.all = nn.Linear(4, 8), nn.Linear(8, 2), nn.Dropout(1.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        empty = F.dropout(x[:, :0], 0.5)
        h = self.first(torch.cat([empty, F.dropout(x, 0.3)], -1))
        return F.cross_entropy(self.head(h + self.all(h)), y) + empty.sum() + torch.randn(0).sum()


def dropped_whole_and_empty() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return DroppedWholeAndEmpty(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class EmbeddingBag(nn.Module):
    """A bag whose operator has results that nothing reads, and that know nothing of `hidden`."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(12, 8, mode="mean", padding_idx=2), nn.Linear(8, 5)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.bag(t)), y)


def embedding_bag() -> Given:
    torch.manual_seed(0)
    inputs = {"t": torch.randint(12, (4, 6)), "y": torch.randint(5, (4,))}
    return EmbeddingBag().double(), inputs, {"t": ("batch", "seq"), "y": ("batch",)}


class InstanceNormStatistics(nn.Module):
    """An instance norm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Conv1d(3, 4, 1), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.n(self.a(x)).sin().mean()


def instance_norm_statistics() -> Given:
    torch.manual_seed(0)
    return (
        InstanceNormStatistics().double(),
        {"x": torch.randn(8, 3, 6).double()},
        {"x": ("batch", "colour", "length")},
    )


class MadeInPartsReadWhole(nn.Module):
    """A codebook that the step reads and then makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 8)
        self.register_buffer("code", torch.randn(10, 8))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        nearest = (z @ self.code.T).argmax(-1)
        with torch.no_grad():
            self.code.copy_(torch.einsum("bk,bd->kd", F.one_hot(nearest, 10).to(x.dtype), z))
        return z.square().mean()


def made_in_parts_read_whole() -> Given:
    torch.manual_seed(0)
    return MadeInPartsReadWhole(), {"x": torch.randn(8, 4)}, {"x": ("batch", "feature")}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.lin(x).transpose(1, 2)).transpose(1, 2)


class Batched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class MergedAxisBesideAPlainOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(2, 2)
        self.h = nn.ModuleList([Scaled(), Batched()])
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.front(x).flatten(2)
        for layer in self.h:
            x = layer(x)
        return (self.head(x) - y).square().mean()


def merged_axis_beside_a_plain_one() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {
        "x": torch.randn(2, 8, 2, 2, generator=g, dtype=torch.float64),
        "y": torch.randn(2, 8, 4, generator=g, dtype=torch.float64),
    }
    return (
        MergedAxisBesideAPlainOne().to(torch.float64),
        [batch],
        {"x": ("batch", "seq", "stream", "feature"), "y": ("batch", "seq", "target")},
    )


class NormalOfAddendsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(self.lin(x).tanh())


class NormalOfAddends(nn.Module):
    """Numbers are drawn around what a product gives, of which each part in time has an addend."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.twice, self.head = nn.Embedding(5, 6), NormalOfAddendsTwice(), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.twice(self.front(x))
        loss = (self.head(x) - y).square().mean() + 0.1 * torch.normal(x, 0.5).mean()
        return loss + torch.normal(self.head(x), 0.1).square().mean()


def normal_of_addends() -> Given:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(5, (2, 2), generator=g)
    y = torch.randn(2, 2, 6, generator=g, dtype=torch.float64)
    return (
        NormalOfAddends().to(torch.float64),
        [{"x": x, "y": y}],
        {"x": ("batch", "seq"), "y": ("batch", "seq", "target")},
    )


class NumberInSingle(nn.Module):
    """In float64, but for one number: a count over a count is float32. The keys' bias has a gradient of rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.q, self.k, self.v = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.front(x)
        x = x + 0.5 * x / (1 + ((x > 0).sum() / x.numel() + x.mean()).abs())
        q, k, v = (p(x).unflatten(2, (2, 4)).transpose(1, 2) for p in (self.q, self.k, self.v))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


def number_in_single() -> Given:
    g = torch.Generator().manual_seed(0)
    batches = [{name: torch.randint(8, (2, 13), generator=g) for name in "xy"} for _ in range(2)]
    return NumberInSingle().double(), batches, {"x": ("batch", "seq"), "y": ("batch", "seq")}


class PartOfABias(nn.Module):
    """Keys with a bias: its gradient is zero but for rounding, by which AdamW divides; its parts in time are strided"""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 6, bias=False), nn.Linear(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (p(x).view(4, 8, 2, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (a.transpose(1, 2).reshape(4, 8, 6) - y).square().mean()


def part_of_a_bias() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 8, 6, generator=g, dtype=torch.float64) for _ in range(2))
    dims = {"x": ("batch", "seq", "hidden"), "y": ("batch", "seq", "target")}
    return PartOfABias().to(torch.float64), [{"x": x, "y": y}], dims


class PartsReadAtOnce(nn.Module):
    """Two products."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x)) - y).square().mean()


def parts_read_at_once() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 6, generator=g, dtype=torch.float64) for _ in range(2))
    return PartsReadAtOnce().double(), {"x": x, "y": y}


class QueueOfKeys(nn.Module):
    """A buffer that takes new rows in front and drops as many old ones, as MoCo's queue: it is one axis as it is read,
    and two pieces of equal size as it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(False)
        self.register_buffer("queue", torch.randn(8, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        query, key = self.query(a), self.key(b)
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().T], 1)
        with torch.no_grad():
            self.queue.copy_(torch.cat([key, self.queue[:4]]))
        return F.cross_entropy(scores, torch.zeros(len(a), dtype=torch.long))


def queue_of_keys() -> Given:
    torch.manual_seed(0)
    return QueueOfKeys(), {x: torch.randn(4, 6) for x in "ab"}, dict.fromkeys("ab", ("batch", "feature"))


class RegionCutAgain(nn.Module):
    """A product on rows of an image, made one axis, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(2, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x).flatten(1, 2)) - y.flatten(1, 2)).square().mean()


def region_cut_again() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 1, 2, n, generator=g, dtype=torch.float64) for n in (2, 4))
    axes = ("batch", "height", "width")
    return RegionCutAgain().double(), [{"x": x, "y": y}], {"x": (*axes, "feature"), "y": (*axes, "target")}


class RepeatedRows(nn.Module):
    """Rows that an index repeats, as a mixture does with its tokens: they are split with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)[torch.arange(x.shape[0]).repeat_interleave(2)]
        h = F.dropout(h, 0.2).view(x.shape[0], 2, 8).sum(1)
        return F.cross_entropy(self.head(h), y)


def repeated_rows() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return RepeatedRows(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class RunsOfGatheredWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(2, 12), nn.Linear(12, 12)
        self.head = nn.Linear(12, 12, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(torch.tanh(self.down(self.up(x)))) - y).square().mean()


def runs_of_gathered_weights() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {"x": torch.randn(2, 8, 2, generator=g), "y": torch.randn(2, 8, 12, generator=g)}
    return RunsOfGatheredWeights(), [batch], {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}


class SharesWithoutGradient(nn.Module):
    """A value is read with a gradient, and without one for a buffer, elsewhere: it travels in shares over slow links"""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("seen", torch.ones(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.front(x)
        with torch.no_grad():
            self.seen.copy_(torch.maximum(self.seen * 0.9, x.abs().amax((0, 1, 2))))
        x = x / (1 + self.seen.abs()) + x
        return (self.head(x) - y).square().mean()


def shares_without_gradient() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 2, 2, 6, generator=g, dtype=torch.float64) for _ in range(2))
    axes = ("batch", "height", "width")
    return (
        SharesWithoutGradient().to(torch.float64),
        [{"x": x, "y": y}],
        {"x": (*axes, "feature"), "y": (*axes, "target")},
    )


class SlicesOfSlicesOfKeys(nn.Module):
    """Causal attention of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return (self.out(found) - y).square().mean()


def slices_of_slices_of_keys() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(2, 6, 4, generator=g, dtype=torch.float64) for name in "xy"}
    return SlicesOfSlicesOfKeys().double(), [batch], dict.fromkeys("xy", ("batch", "seq", "hidden"))


class SpectralNormRecomputed(nn.Module):
    """A spectral norm's vectors, of which one is only written: they change, and recomputation reads the old ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(6, 2)
        self.middle = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.middle(self.first(x)).tanh()), y)


def spectral_norm_recomputed() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return SpectralNormRecomputed(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class StatisticsReadBefore(nn.Module):
    """Running statistics that are read before the batch norm changes them, and again by recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x) * (1 + self.norm.running_var)
        return F.cross_entropy(self.head(self.norm(h.tanh())), y)


def statistics_read_before() -> Given:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return StatisticsReadBefore(), {"x": x, "y": torch.arange(8) % 2}, {"x": ("batch", "feature"), "y": ("batch",)}


class TiedShares(nn.Module):
    """A penalty reads the weights of all layers, on the devices of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        penalty = sum(w.square().sum() for w in self.parameters())
        return (self.head(self.front(x)) - y).square().mean() + 0.01 * penalty


def tied_shares() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 4, 3, generator=g, dtype=torch.float64) for _ in range(2))
    return (
        TiedShares().double(),
        [{"x": x, "y": y}],
        {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")},
    )


class TwoSlicesGrouped(nn.Module):
    def __init__(self, hidden: int, heads: int, groups: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.causal = heads, groups, causal
        size = hidden // heads
        self.q, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden)
        self.k, self.v = nn.Linear(hidden, groups * size), nn.Linear(hidden, groups * size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q = self.q(x).view(b, s, self.heads, -1).transpose(1, 2)
        k, v = (p(x).view(b, s, self.groups, -1).transpose(1, 2) for p in (self.k, self.v))
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(b, s, h))


class TwoSlicesMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int, bias: bool, act: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, ffn, bias=bias), nn.Linear(ffn, hidden, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(getattr(F, self.act)(self.up(self.norm(x))))


class TwoSlices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 6)
        self.h = nn.ModuleList([TwoSlicesGrouped(6, 6, 2, False), TwoSlicesMlp(6, 12, False, "silu")])
        self.head = nn.Linear(6, 8, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = (self.front(x), [])
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = F.cross_entropy(self.head(x.mean(1)), y)
        for term in terms:
            loss = loss + term
        return loss


def two_slices() -> Given:
    g = torch.Generator().manual_seed(0)
    batches = [
        {"x": torch.randn(8, 4, 8, generator=g, dtype=torch.float64), "y": torch.randint(8, (8,), generator=g)}
        for _ in range(2)
    ]
    return TwoSlices().double(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch",)}


class UnequalMicroBatchesOfAMergedAxis(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(2, 4)
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x).flatten(0, 1)) - y.flatten(0, 1)).square().mean()


def unequal_micro_batches_of_a_merged_axis() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(4, 2, 8, size, generator=g, dtype=torch.float64) for name, size in (("x", 2), ("y", 4))}
    axes = ("batch", "sample", "seq")
    return (
        UnequalMicroBatchesOfAMergedAxis().to(torch.float64),
        [batch],
        {"x": (*axes, "feature"), "y": (*axes, "target")},
    )


class UnequalPartsSent(nn.Module):
    """A product on rows of an image, made one axis, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(2, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x).flatten(1, 2)) - y.flatten(1, 2)).square().mean()


def unequal_parts_sent() -> Given:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, 3, n, generator=g, dtype=torch.float64) for n in (2, 8))
    axes = ("batch", "height", "width")
    return UnequalPartsSent().double(), [{"x": x, "y": y}], {"x": (*axes, "feature"), "y": (*axes, "target")}


class WindowsOfSizeOne(nn.Module):
    """A transposed convolution makes two rows of one."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.down = nn.Linear(3, 4), nn.Conv2d(1, 2, 3, 2, 1)
        self.up = nn.ConvTranspose2d(2, 1, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.front(x)
        z = self.up(self.down(y.unsqueeze(1)), output_size=y.shape[1:])
        return (y + z.squeeze(1)).square().mean()


def windows_of_size_one() -> Given:
    g = torch.Generator().manual_seed(0)
    return (
        WindowsOfSizeOne().double(),
        {"x": torch.randn(2, 2, 3, generator=g, dtype=torch.float64)},
        {"x": ("batch", "seq", "feature")},
    )


class WrittenSpectrum(nn.Module):
    """A layer of a Fourier neural operator: the lowest frequencies are mixed and written into an empty spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.project = nn.Linear(1, 4), nn.Linear(4, 1)
        self.weight = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.cfloat))

    def forward(self, u: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.lift(u).transpose(1, 2))
        mixed = torch.zeros_like(spectrum)
        mixed[..., :3] = torch.einsum("bix,iox->box", spectrum[..., :3], self.weight)
        mixed[..., 4] = spectrum[..., 3]
        smooth = torch.fft.irfft(mixed, n=u.shape[1]).transpose(1, 2).relu()
        return (self.project(smooth) - u).square().mean()


def written_spectrum() -> Given:
    torch.manual_seed(0)
    return WrittenSpectrum(), {"u": torch.randn(4, 10, 1)}, {"u": ("batch", "x", "channel")}


class ZeroOverAxesOfWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(8, 2 * 8), nn.Linear(2 * 8, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.down(self.up(x).relu())), y)


def zero_over_axes_of_weights() -> Given:
    g = torch.Generator().manual_seed(0)
    batch = {"x": torch.randn(4, 8, generator=g), "y": torch.randint(6, (4,), generator=g)}
    return ZeroOverAxesOfWeights(), [batch], {"x": ("batch", "feature"), "y": ("batch",)}
