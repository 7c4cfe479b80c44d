"""Products whose dimensions are cut in space and in time, by unequal parts, and between meshes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.fuzz.trial import SLOW
from tests.fuzz.case import case, module

torch.manual_seed(0)  # the weights are the same, whatever ran before


@case(x="batch 4, feature 8", y="batch 4 < 6")
@module(up=nn.Linear(8, 16), down=nn.Linear(16, 8), head=nn.Linear(8, 6))
def classes_in_time(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A backward of some classes before the forward of others.

    mesh gpus(dp = 2)
    split model by batch into m = 2
    split model by classes into n = [1, 5]
    assign model to gpus
    order model.fwd[m = 1, n = 1] -> model.bwd[m = 0, n = 0]
    """
    return F.cross_entropy(net.head(net.down(net.up(x).relu())), y)


@case(x="batch 4, feature 8", y="batch 4 < 6")
@module(up=nn.Linear(8, 16), down=nn.Linear(16, 8), head=nn.Linear(8, 6))
def zero_over_axes_of_weights(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Weights that are cut by an axis of their layer, too.

    mesh gpus(dp = 2, tp = 2)
    split model by batch into dp
    split model by ffn into tp
    split model.weights by row into dp, tp
    assign model to gpus
    """
    return F.cross_entropy(net.head(net.down(net.up(x).relu())), y)


@case(x="batch 8, seq 3, feature 4", y="batch 8 < 3")
@module(rnn=nn.GRU(4, 6, bidirectional=True, batch_first=True), out=nn.Linear(12, 3))
def cut_twice_where_a_like_call_is_not(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """The two directions of a recurrent layer make equal calls, one of them with other factors now.

    mesh gpus(cp = 1)
    split model.mul by "rnn.weight_ih_l0.0_inner1" into c = 2, m = [2, 1]
    assign model to gpus
    """
    return F.cross_entropy(net.out(net.rnn(x)[0].mean(1)), y)


@case(x="batch 2, seq 6, feature 4")
@module(lin=nn.Linear(4, 4))
def data_operator_of_two_results(net: Any, x: Tensor) -> Tensor:
    """Of two results of an operator on inputs one is read.

    mesh gpus(dp = 2)
    split model by batch into dp
    assign model to gpus
    """
    return net.lin(x.cummax(1).values).square().mean()


@case(x="batch 4, feature 6", y="batch 4, feature 6")
@module(front=nn.Linear(6, 6), head=nn.Linear(6, 6))
def parts_read_at_once(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Two products.

    mesh gpus(pp = 2)
    split model["front"] by batch into m = 4
    assign model["front"] to gpus[pp = 0]
    assign model - model["front"] to gpus[pp = 1]
    """
    return (net.head(net.front(x)) - y).square().mean()


@case(x="batch 6, height 1, width 2, feature 2", y="batch 6, height 1, width 2, target 4")
@module(front=nn.Linear(2, 4), head=nn.Linear(4, 4, bias=False))
def region_cut_again(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A product on rows of an image that become one axis, and another one.

    mesh gpus(dp = 1)
    split model.linear by batch into m = [1, 5]
    split model by batch into m = 2, n = 3 where possible
    assign model to gpus
    """
    return (net.head(net.front(x).flatten(1, 2)) - y.flatten(1, 2)).square().mean()


@case(x="batch 2, height 3, width 3, feature 2", y="batch 2, height 3, width 3, target 8", refused="E0406")
@module(front=nn.Linear(2, 8), head=nn.Linear(8, 8, bias=False))
def unequal_parts_sent(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A product on rows of an image that become one axis, and another one.

    mesh gpus(dp = 2, tp = 2, pp = 2)
    let stage = balance(model, 2)
    split model by width into tp = [1, 2]
    split model by height into dp = [2, 1]
    assign stage[0] to gpus[pp = 0]
    assign stage[1] to gpus[pp = 1]
    """
    return (net.head(net.front(x).flatten(1, 2)) - y.flatten(1, 2)).square().mean()


@case(x="batch 4, sample 2, seq 8, feature 2", y="batch 4, sample 2, seq 8, target 4", cluster=SLOW)
@module(front=nn.Linear(2, 4), head=nn.Linear(4, 4, bias=False))
def unequal_micro_batches_of_a_merged_axis(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A product on samples that become one axis, and another one.

    mesh g0(dp = 2)
    mesh g1(dp = 2)
    let stage = balance(model, 2)
    split stage[0] by batch into m = [3, 1]
    assign stage[0] to g0
    assign stage[1] to g1
    """
    return (net.head(net.front(x).flatten(0, 1)) - y.flatten(0, 1)).square().mean()


@case(x="batch 2, seq 8, feature 2", y="batch 2, seq 8, target 12")
@module(up=nn.Linear(2, 12), down=nn.Linear(12, 12), head=nn.Linear(12, 12, bias=False))
def runs_of_gathered_weights(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Three products; a device has several runs of rows.

    mesh gpus(tp = 2)
    split model by hidden into tp parts [[2, 1], [3, 0]]
    assign model to gpus
    split model.weights by row into tp
    """
    return (net.head(torch.tanh(net.down(net.up(x)))) - y).square().mean()


@case(x="batch 2, seq 4, feature 3", y="batch 2, seq 4, target 3", cluster=SLOW)
@module(front=nn.Linear(3, 3), head=nn.Linear(3, 3))
def tied_shares(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """A penalty reads the weights of all layers, on the devices of the last.

    mesh gpus(pp = 2, dp = 2, cp = 2)
    split model by seq into dp where possible
    assign model["front"] to gpus[pp = 0]
    assign model - model["front"] to gpus[pp = 1]
    """
    penalty = sum(w.square().sum() for w in net.parameters())
    return (net.head(net.front(x)) - y).square().mean() + 0.01 * penalty


@module(q=nn.Linear(6, 6, bias=False), k=nn.Linear(6, 2), v=nn.Linear(6, 2, bias=False), out=nn.Linear(6, 6))
def grouped(net: Any, x: Tensor) -> Tensor:
    """Six heads of size one, in two groups."""
    q, k, v = (p(x).unflatten(-1, (-1, 1)).transpose(1, 2) for p in (net.q, net.k, net.v))
    k, v = (t.repeat_interleave(3, 1) for t in (k, v))
    return x + net.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@module(norm=nn.LayerNorm(6), up=nn.Linear(6, 12, bias=False), down=nn.Linear(12, 6, bias=False))
def gated(net: Any, x: Tensor) -> Tensor:
    return x + net.down(F.silu(net.up(net.norm(x))))


@case(x="batch 8, seq 4, feature 8", y="batch 8 < 8")
@module(front=nn.Linear(8, 6), h=nn.Sequential(grouped, gated), head=nn.Linear(6, 8, bias=False))
def two_slices(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """One operator and all operators are cut by two indices in time.

    mesh gpus(pp = 1)
    split model["h.0.q"] by batch into m = 2
    split model by batch into n = 2
    assign model to gpus
    """
    return F.cross_entropy(net.head(net.h(net.front(x)).mean(1)), y)


@case(x="batch 2, seq 2, feature 3")
@module(front=nn.Linear(3, 4), down=nn.Conv2d(1, 2, 3, 2, 1), up=nn.ConvTranspose2d(2, 1, 3, 2, 1))
def windows_of_size_one(net: Any, x: Tensor) -> Tensor:
    """A transposed convolution makes two rows of one.

    mesh gpus(cp = 1)
    split model by seq into t = 2
    assign model to gpus
    """
    y = net.front(x)
    z = net.up(net.down(y.unsqueeze(1)), output_size=y.shape[1:])
    return (y + z.squeeze(1)).square().mean()
