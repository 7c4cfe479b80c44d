"""Buffers that a step changes, and statistics of batches."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.fuzz.trial import SLOW
from tests.fuzz.case import case, module

torch.manual_seed(0)  # the weights are the same, whatever ran before


@case(a="batch 8, feature 10", b="batch 8, feature 10")
@module(encoder=nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6)))
def batch_norm_of_two_views(net: Any, a: Tensor, b: Tensor) -> Tensor:
    """One encoder for two views of a sample, as in Barlow Twins. Each part of its statistics takes the first view's,
    then the second one's.

    mesh gpus(pp = 2)
    let stage = balance(model, 2)
    split model by ffn into n = 2, m = 2
    assign stage[s] to gpus[pp = s] for s in 0..2
    """
    first, second = net.encoder(a), net.encoder(b)
    first, second = first - first.mean(0), second - second.mean(0)
    return (first.T @ second / len(a)).square().mean()


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
def batch_norm_twice(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A batch norm that is called twice: its statistics change twice.

    mesh gpus(dp = 2)
    split model by batch into dp
    assign model to gpus
    """
    return F.cross_entropy(net.head(net.norm(net.first(net.norm(net.first(x)).relu()))), y)


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 8), second=nn.Linear(8, 4), head=nn.Linear(4, 2), centre=torch.zeros(4))
def buffer_changed_in_parts(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A moving average that all micro-batches read, and recomputation again: it changes behind the step.

    mesh gpus(pp = 2)
    split model by batch into m = [3, 3, 2]
    let stage = balance(model, 2)
    recompute model
    assign stage[s] to gpus[pp = s] for s in 0..2
    """
    h = net.second(F.dropout(net.first(x - net.centre), 0.2).tanh() * 2)
    with torch.no_grad():
        net.centre.copy_(0.5 * net.centre + x.mean(0))
    return F.cross_entropy(net.head(h), y)


@case(x="batch 2, seq 3, stream 2, feature 4", y="batch 2, seq 3, target 12")
@module(front=nn.Linear(4, 6), head=nn.Linear(12, 12), seen=torch.ones(12))
def buffer_of_merged_axis(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A buffer that nobody reads before it is overwritten: by a value whose axis is merged of two.

    mesh gpus(tp = 2)
    split model by batch into tp
    assign model to gpus
    """
    x = net.front(x).flatten(2)
    if net.training:
        with torch.no_grad():
            net.seen.copy_(x[-1, -1])
    return (net.head(x / (1 + net.seen.abs())) - y).square().mean()


@case(x="batch 8, hidden 4", y="batch 8, one 1")
@module(front=nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), back=nn.Linear(4, 1))
def buffer_split_as_its_parts(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """The vectors of a spectral norm, one dimension of the model cut twice.

    mesh gpus(tp = 2)
    split model by hidden into n = 2
    split model by "hidden.1" into tp
    assign model to gpus
    """
    return (net.back(torch.relu(net.front(x) + x)) - y).square().mean()


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(
    first=nn.Linear(4, 8),
    head=nn.Linear(8, 2),
    **{name: torch.ones(4) for name in ("last", "before", "again", "zero")},
)
def buffers_from_inputs(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Buffers whose new values depend on inputs only, or are other buffers, two of them the same.

    mesh gpus(pp = 2)
    split model by batch into m = [3, 3, 2]
    let stage = balance(model, 2)
    recompute model
    assign stage[s] to gpus[pp = s] for s in 0..2
    """
    h = net.first(x + net.last + net.before - net.again)
    net.before.copy_(net.last)
    net.last.copy_(x.mean(0))
    net.again.copy_(x.mean(0) + net.before)
    net.zero.zero_()
    return F.cross_entropy(net.head(h.relu()), y)


@case(x="batch 8, colour 3, length 6")
@module(a=nn.Conv1d(3, 4, 1), n=nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
def instance_norm_statistics(net: Any, x: Tensor) -> Tensor:
    """An instance norm with running statistics.

    mesh gpus(tp = 2)
    split model by length into tp
    split model by batch into m = 4
    assign model to gpus
    """
    return net.n(net.a(x)).sin().mean()


@case(x="batch 8, feature 4")
@module(encode=nn.Linear(4, 8), code=torch.randn(10, 8))
def made_in_parts_read_whole(net: Any, x: Tensor) -> Tensor:
    """A codebook that the step reads and then replaces: the same axis as it is read and as it is written.

    mesh gpus(cp = 2)
    split model.einsum by one_hot.out into cp, m = [1, 4]
    assign model to gpus
    """
    z = net.encode(x)
    nearest = (z @ net.code.T).argmax(-1)
    with torch.no_grad():
        net.code.copy_(torch.einsum("bk,bd->kd", F.one_hot(nearest, 10).to(x.dtype), z))
    return z.square().mean()


@module(lin=nn.Linear(4, 4), norm=nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
def scaled(net: Any, x: Tensor) -> Tensor:
    return x + net.norm(net.lin(x).transpose(1, 2)).transpose(1, 2)


@module(norm=nn.BatchNorm1d(4))
def batched(net: Any, x: Tensor) -> Tensor:
    return net.norm(x.transpose(1, 2)).transpose(1, 2)


@case(x="batch 2, seq 8, stream 2, feature 2", y="batch 2, seq 8, target 4", cluster=SLOW)
@module(front=nn.Linear(2, 2), h=nn.Sequential(scaled, batched), head=nn.Linear(4, 4, bias=False))
def merged_axis_beside_a_plain_one(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Statistics of channels that are one axis here, and two elsewhere.

    mesh gpus(pp = 2, cp = 2)
    let last = model["front"] | model["h.0"] | model["h.1"] | model["head"]
    assign model - last to gpus[pp = 0]
    assign last to gpus[pp = 1]
    """
    return (net.head(net.h(net.front(x).flatten(2))) - y).square().mean()


@case(a="batch 4, feature 6", b="batch 4, feature 6")
@module(query=nn.Linear(6, 4), key=nn.Linear(6, 4).requires_grad_(False), queue=torch.randn(8, 4))
def queue_of_keys(net: Any, a: Tensor, b: Tensor) -> Tensor:
    """A buffer that takes new rows in front and drops as many old ones, as MoCo's queue: it is one axis as it is read,
    and two pieces of equal size as it is written. Its parts along the width are those of its new value, along the rows
    it has none.

    mesh gpus(dp = 2, tp = 2)
    split model by batch into dp
    split model by "query.weight.0" into tp
    assign model to gpus
    """
    query, key = net.query(a), net.key(b)
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ net.queue.clone().T], 1)
    with torch.no_grad():
        net.queue.copy_(torch.cat([key, net.queue[:4]]))
    return F.cross_entropy(scores, torch.zeros(len(a), dtype=torch.long))


@case(x="batch 2, height 2, width 2, feature 6", y="batch 2, height 2, width 2, target 6", cluster=SLOW)
@module(front=nn.Linear(6, 6), head=nn.Linear(6, 6), seen=torch.ones(6))
def shares_without_gradient(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A value is read with a gradient, and without one for a buffer, elsewhere: it travels in shares over slow links.

    mesh gpus(pp = 2, dp = 2)
    split model by height into m = 2
    split model.div by width into dp
    assign model["front"] to gpus[pp = 0]
    assign model - model["front"] to gpus[pp = 1]
    """
    x = net.front(x)
    with torch.no_grad():
        net.seen.copy_(torch.maximum(net.seen * 0.9, x.abs().amax((0, 1, 2))))
    return (net.head(x / (1 + net.seen.abs()) + x) - y).square().mean()


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 8), middle=nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)), head=nn.Linear(6, 2))
def spectral_norm_recomputed(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A spectral norm's vectors, of which one is only written: they change, and recomputation reads the old ones.

    mesh gpus(pp = 2)
    split model by batch into m = [3, 3, 2]
    let stage = balance(model, 2)
    recompute model
    assign stage[s] to gpus[pp = s] for s in 0..2
    """
    return F.cross_entropy(net.head(net.middle(net.first(x)).tanh()), y)


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
def statistics_read_before(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Running statistics that are read before the batch norm changes them, and again by recomputation.

    mesh gpus(dp = 2)
    split model by batch into dp
    recompute model
    assign model to gpus
    """
    h = net.first(x) * (1 + net.norm.running_var)
    return F.cross_entropy(net.head(net.norm(h.tanh())), y)
