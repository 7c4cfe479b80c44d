"""A network of volumes split in space by hand (Oyama et al. 2020, arXiv 2007.12856): each of two ranks has a half.

Rank 0 has the first planes of the depth, rank 1 the others. In front of a convolution of 3 each sends the other the
plane at the cut; in front of a pooling of 3 with stride 2 rank 0 alone does. Backward returns their gradients. Behind
the last pooling a rank multiplies its half of the features with its columns of the first linear layer; an all_reduce
adds the two, and the rest is computed by both.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bench.peers.hand_tp import Leave
from bench.peers.setup import Batch, Step, adamw, train
from ssdsl.model.zoo.nets.cosmoflow import SLOPE, CosmoFlowNet

DEPTH = 2
Weights = dict[str, Tensor]


def build(model: CosmoFlowNet, rank: int, ranks: int) -> Step:
    assert ranks == 2
    weights = {name: w.detach().clone() for name, w in model.named_parameters()}
    weights["first.weight"] = columns(weights["first.weight"], len(weights["blocks.0.conv.weight"]), model, rank)
    for weight in weights.values():
        weight.requires_grad_()
    flat = flatten_gradients([w for name, w in weights.items() if name.startswith("blocks")])
    others = [w for name, w in weights.items() if not name.startswith("blocks")]
    optimizer = adamw(weights.values())
    layers = len(model.blocks)

    def step(batch: Batch) -> Tensor:
        flat.zero_()
        for weight in others:
            weight.grad = None
        loss = F.mse_loss(forward(slab(batch["volume"], rank), weights, layers, rank), batch["target"])
        loss.backward()
        dist.all_reduce(flat)
        optimizer.step()
        return loss / ranks  # both have all of it

    return step


def columns(weight: Tensor, base: int, model: CosmoFlowNet, rank: int) -> Tensor:
    """The columns of the first linear layer for a half of the depth; its input is `[channels, 4, 4, 4]`."""
    whole = weight.unflatten(1, (base << (len(model.blocks) - 1), 4, 4, 4))
    return whole[:, :, 2 * rank : 2 * rank + 2].flatten(1).contiguous()


def flatten_gradients(parameters: list[Tensor]) -> Tensor:
    """One tensor for their gradients, to which backward adds."""
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter)
    return flat


def slab(volume: Tensor, rank: int) -> Tensor:
    """A half of the volume with the plane of the other half that the first convolution reads, and a plane of zeros."""
    half = volume.shape[DEPTH] // 2
    near = volume.narrow(DEPTH, 0, half + 1) if rank == 0 else volume.narrow(DEPTH, half - 1, half + 1)
    return between(rank, None, near)


def forward(x: Tensor, w: Weights, layers: int, rank: int) -> Tensor:
    """From a slab to what the network predicts."""
    for layer in range(layers):
        if layer:
            x = Halo.apply(x, rank, (True, True))
        x = F.conv3d(x, w[f"blocks.{layer}.conv.weight"], w[f"blocks.{layer}.conv.bias"], padding=(0, 1, 1))
        x = Halo.apply(F.leaky_relu(x, SLOPE), rank, (False, True))
        x = F.avg_pool3d(x, 3, 2, padding=(0, 1, 1))
    x = Leave.apply(F.linear(x.flatten(1), w["first.weight"])) + w["first.bias"]
    x = F.linear(F.leaky_relu(x, SLOPE), w["second.weight"], w["second.bias"])
    return F.linear(F.leaky_relu(x, SLOPE), w["last.weight"], w["last.bias"])


def between(rank: int, other: Tensor | None, x: Tensor) -> Tensor:
    """A slab between zeros, where the volume ends, and what the other rank has sent at the cut."""
    zeros = torch.zeros_like(x.narrow(DEPTH, 0, 1))
    near = [] if other is None else [other]
    return torch.cat([zeros, x, *near] if rank == 0 else [*near, x, zeros], DEPTH)


class Halo(torch.autograd.Function):
    """A slab with the plane of the other rank beyond the cut, where this rank `gets` one, and zeros at its other end.

    What a pooling does not read is left out: rank 1 has no zeros there.
    """

    @staticmethod
    def forward(ctx, x: Tensor, rank: int, gets: tuple[bool, bool]) -> Tensor:
        ctx.rank, ctx.gets, ctx.shape = rank, gets, x.shape
        planes = x.shape[DEPTH]
        at = planes - 1 if rank == 0 else 0
        mine = x.narrow(DEPTH, at, 1).contiguous() if gets[1 - rank] else None
        other = torch.empty_like(x.narrow(DEPTH, 0, 1), memory_format=torch.contiguous_format) if gets[rank] else None
        swap(mine, other, rank)
        if rank == 1 and not gets[0]:
            assert other is not None
            return torch.cat([other, x], DEPTH)
        return between(rank, other, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        rank, gets, planes = ctx.rank, ctx.gets, ctx.shape[DEPTH]
        end = gradient.shape[DEPTH] - 1
        back = gradient.narrow(DEPTH, end if rank == 0 else 0, 1).contiguous() if gets[rank] else None
        mine = gradient.narrow(DEPTH, 1 if rank == 0 or gets[1] else 0, planes)
        other = (
            torch.empty_like(mine.narrow(DEPTH, 0, 1), memory_format=torch.contiguous_format)
            if gets[1 - rank]
            else None
        )
        swap(back, other, rank)
        if other is not None:
            mine.narrow(DEPTH, planes - 1 if rank == 0 else 0, 1).add_(other)
        return mine, None, None


def swap(mine: Tensor | None, other: Tensor | None, rank: int) -> None:
    """Sends a plane to the other rank and receives one of it, where there is one."""
    works = [] if mine is None else [dist.isend(mine, 1 - rank)]
    works += [] if other is None else [dist.irecv(other, 1 - rank)]
    for work in works:
        work.wait()


if __name__ == "__main__":
    train(build)
